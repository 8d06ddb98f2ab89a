#!/bin/sh
# How spark-engine starts: flags from a file, --check, what is refused before anything is loaded, readiness, logs.
# Usage: engine_start.sh SPARK SPARK_ENGINE
set -eu
test=engine_start spark=$1 engine=$2
. "${0%/*}/engine_lib.sh"

# A good launch is checked, and nothing starts.
expect 0 'ready to start' model --check --port 0 --max-num-seqs 2
grep -q 'weights: routed experts' out.txt || fail 'no memory plan'

# The file's flags count, the command line's win.
cat >good.yaml <<'YAML'
model: model
port: 0
max_num_seqs: 3       # as on the command line, or with underscores
max-model-len: 256
served-model-name: [first, second]
exact-prefill: true
io-uring: false
log-format: json
YAML
expect 0 '3 of up to 256 tokens' --config good.yaml --check
grep -q 'served as  first' out.txt || fail 'no list'
expect 0 '2 of up to 256 tokens' --config good.yaml --check --max-num-seqs 2

# Everything wrong with a file is said at once.
cat >bad.yaml <<'YAML'
model: model
max-nun-seqs: 3
port: [1, 2]
max-model-len: many
port: 5
YAML
expect 1 'did you mean "max-num-seqs"?' --config bad.yaml --check
grep -q 'bad.yaml:3' err.txt || fail 'no line of the list'
grep -q 'given twice' err.txt || fail 'no double key'
grep -q 'many' err.txt || fail 'no bad number'
printf '[1' >broken.yaml
expect 1 'broken.yaml:1' --config broken.yaml
printf 'a string\n' >string.yaml
expect 1 'no map' --config string.yaml
expect 1 'nowhere.yaml' --config nowhere.yaml
expect 2 'MODEL_DIR' --check
expect 1 '--uds needs a folder that exists' model --check --uds /nonexistent/engine.sock
expect 2 'choose one of: ' model --check --backend gpu
if ! "$engine" --help | grep -q 'Where to compute:.*cuda'; then
  expect 2 'choose one of: ' model --check --backend cuda
  grep -q 'CUDA\|GPU' err.txt || fail 'no reason why there is no cuda'
fi

# What does not fit is refused before it is allocated; what is broken is named.
huge="--port 0 --max-num-seqs 4096 --max-model-len 8192 --max-num-batched-tokens 500000"
if [ "$(awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)" -lt 14 ]; then
  # shellcheck disable=SC2086
  expect 1 'are available' model --check $huge
  # shellcheck disable=SC2086
  expect 1 'are available' model $huge
fi
cp -r model damaged
chmod -R u+w damaged
shard=$(ls damaged/*.safetensors | head -n 1)
head -c 100000 "$shard" >cut && mv cut "$shard"
echo '{"top_p": 7}' >model/generation_config.json
expect 1 'safetensors' damaged --check --port 0
expect 1 'top_p' model --check --port 0
expect 0 'ready to start' model --check --port 0 --generation-config vllm
rm model/generation_config.json

# Every file that cannot be used is named at once, and so is every flag that does not fit the model.
mkdir defaults
echo '{"top_p": 7}' >defaults/generation_config.json
printf 'two words' >key.txt
all_named() {
  for text; do grep -qF -- "$text" err.txt || fail "\"$text\" is not among the faults"; done
}
SPARK_API_KEY=' ' expect 1 '5 faults' model --check --port 0 --api-key-file absent.txt --generation-config defaults \
  --max-model-len 1000000000 --speculative-config '{"method": "none"}'
all_named 'SPARK_API_KEY: holds no key' absent.txt 'top_p' '--max-model-len' '--speculative-config'
expect 1 '4 faults' damaged --check --port 0 --api-key-file key.txt --generation-config defaults \
  --max-model-len 1000000000
all_named 'key.txt: holds a key with blanks' safetensors 'top_p' '--max-model-len'
echo '{' >damaged/config.json
expect 1 '2 faults' damaged --check --port 0 --generation-config defaults --max-model-len 1000000000
all_named 'damaged/config.json' 'top_p'
# A start ends with the first of them.
for arguments in '--api-key-file absent.txt' '--max-model-len 1000000000'; do
  # shellcheck disable=SC2086
  expect 1 "${arguments#* }" model --port 0 --generation-config defaults $arguments
  if grep -qF top_p err.txt; then fail 'two faults of a start'; fi
done

# A server says when it is ready, in logs that programs can read, and takes its port first.
serve --config good.yaml
for phase in 'reading configuration' 'headers' 'Engram classes' 'loading weights' 'generating the first token' 'boot: ready'; do
  grep -q "\"message\":\".*$phase.*\"seconds\":" err.txt || fail "no phase \"$phase\" with its time"
done
if grep -v '^{"time":".*}$' err.txt; then fail 'a line that is no JSON'; fi
"$engine" --config good.yaml --uds "$work/socket" --check >out2.txt 2>err2.txt </dev/null && fail 'the socket is in use'
grep -q 'socket' err2.txt || fail 'the socket in use is not named'
end_server
echo ok
