#!/bin/sh
# What spark-engine refuses of its flags, on the command line and in a file alike, and what it says then.
# Usage: engine_flags.sh SPARK SPARK_ENGINE
set -eu
test=engine_flags spark=$1 engine=$2
. "${0%/*}/engine_lib.sh"
# in_file TEXT LINES: what --check says about a file with the model and these lines
in_file() {
  printf 'model: model\n%b' "$2" >flags.yaml
  expect 1 "$1" --check --config flags.yaml
}
# starts ARGUMENTS...: the server becomes ready, and ends cleanly
starts() {
  serve "$@"
  end_server
}

# No flag that takes a value takes an empty one: a key file whose name a script lost must not open the server.
flags=$("$engine" --help | sed -n 's/^ *\(--[a-z-]*\) \(TEXT\|INT\|UINT\|FLOAT\).*/\1/p')
for flag in --api-key-file --api-key --host --uds --generation-config --config --served-model-name --master-addr; do
  echo "$flags" | grep -qx -- "$flag" || fail "$flag is not among the flags of --help"
done
for flag in $flags; do
  expect 2 "$flag: must not be empty" model --check --port 0 "$flag" ''
  [ "$flag" = --config ] || in_file "$flag: must not be empty" "${flag#--}: \"\"\n"
done
expect 2 'MODEL_DIR: must not be empty' '' --check

# A word that no flag takes: in the order written, with what was meant.
expect 2 'not expected: --max-model-lenn 10' model --check --max-model-lenn 10
expect 2 'did you mean --max-model-len?' model --check --max-model-lenn 10

# Whole numbers are decimal, not what C reads.
for flag in --port --max-model-len --threads --tensor-parallel-size --max-body-bytes; do
  for number in 010 0x10 +5 ' 5' -0 1e3; do
    expect 2 'plain decimal digits' model --check --port 0 "$flag=$number"
  done
done
in_file 'plain decimal digits' 'max-model-len: 010\n'
expect 2 'no number from' model --check --max-token-gap-ms 0x10
expect 2 'not in range' model --check --port 65536
expect 0 'of up to 10 tokens' model --check --port 0 --max-model-len 10

# Words are printed as words.
for flag in --weight-reads --log-level --log-format --collective-dtype; do
  for value in x 0 1; do expect 2 "$flag: $value not in {" model --check --port 0 "$flag" "$value"; done
done
expect 2 'auto,direct,map' model --weight-reads x
expect 0 'ready to start' model --check --port 0 --weight-reads DIRECT --log-level Debug
"$engine" --help >out.txt
[ "$(tr -d '\n\t\040-\176' <out.txt | wc -c)" -eq 0 ] || fail '--help prints bytes that are no text'

# Names go into metrics.
broken=$(printf '\377')
expect 2 'must be valid UTF-8' model --check --port 0 --served-model-name "$broken"
ln -s model "$broken"
expect 1 'name the model with --served-model-name' "$broken" --check --port 0
expect 0 'served as  good' "$broken" --check --port 0 --served-model-name good

# A step has a token of every sequence.
expect 2 'above the 50 tokens of a step' model --check --port 0 --max-num-seqs 100 --max-num-batched-tokens 50
expect 0 'sequences  4 of' model --check --port 0 --max-num-batched-tokens 4

# A file says one thing once.
in_file 'flags.yaml:4' 'x: 1\n---\nmax-num-seqs: 3\n'
in_file 'begins a second document' '---\nmax-num-seqs: 3\n'
in_file 'takes one value' 'exact-prefill: [true, false]\n'
in_file 'takes one value or more' 'served-model-name: []\n'
in_file 'is given beside "enable-prefix-caching"' 'enable-prefix-caching: true\nno-enable-prefix-caching: true\n'
printf -- '---\nmodel: model\nport: 0\n...\n---\n' >flags.yaml
expect 0 'ready to start' --check --config flags.yaml

# The shortest contexts serve, and what is shorter is refused by the check.
expect 2 'not in range' model --check --max-model-len 1
for length in 2 5 8; do
  expect 0 "of up to $length tokens" model --check --port 0 --max-model-len $length
  starts model --max-model-len $length
done
cp -r model short
chmod -R u+w short
shorten() {
  sed "s/\"max_position_embeddings\": *[0-9]*/\"max_position_embeddings\": $1/" model/config.json >short/config.json
}
shorten 3
starts short
shorten 1
expect 1 'max_position_embeddings is 1; 2 is the least' short --check --port 0
expect 1 'max_position_embeddings is 1; 2 is the least' short --port 0

# A configuration is as long for the start as it is for the check.
{ cat model/config.json; head -c 17000000 /dev/zero | tr '\0' ' '; } >short/config.json
expect 1 'is larger than 16777216 bytes' short --check --port 0
expect 1 'is larger than 16777216 bytes' short --port 0

# What could not be printed is not a success.
for action in --help --version --check; do
  got=0
  "$engine" model --port 0 $action >/dev/full 2>err.txt </dev/null || got=$?
  [ "$got" -eq 1 ] || fail "$got from $action into a full disk"
  grep -q 'standard output: cannot be written' err.txt || fail "nothing said about $action into a full disk"
done

# What the system refuses is named with what helps.
# How many files are enough depends on what the shell that runs this has open: fewer and fewer, until a shard is refused.
for files in 16 14 12 10 9 8 7 6; do
  got=0
  (ulimit -n "$files" && exec "$engine" model --check --port 0) >out.txt 2>err.txt </dev/null || got=$?
  [ "$got" -eq 0 ] || break
done
[ "$got" -eq 1 ] || fail "$got with $files open files"
grep -q 'safetensors: cannot be opened.*ulimit -n' err.txt || fail 'no advice about open files'
if grep -q 'copy or download' err.txt; then fail 'advice to copy what may not be opened'; fi
if (ulimit -v 120000 && exec "$engine" --version) >/dev/null 2>&1; then  # sanitizers cannot live with so little
  got=0
  (ulimit -v 120000 && exec "$engine" model --port 0 --threads 64) >out.txt 2>err.txt </dev/null || got=$?
  [ "$got" -eq 1 ] || fail "$got with little address space"
  grep -q 'ulimit -v' err.txt || fail 'no advice about address space'
fi
echo ok
