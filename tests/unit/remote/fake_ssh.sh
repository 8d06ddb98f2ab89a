#!/bin/sh
# Stands in for the OpenSSH client in unit tests: "connects" to hosts whose names say what goes wrong and runs
# the command line with the local shell, as sshd does with the login shell.
: "${FAKE_SSH_LOG:=/dev/null}"
operation=
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    -O) operation=$2; shift 2 ;;
    -o | -l | -F) shift 2 ;;
    *) shift ;;
  esac
done
host=$1
shift
echo "$host $operation $*" >>"$FAKE_SSH_LOG"
[ -z "$operation" ] || exit 0
case $host in
  ok*) exec sh -c "$*" ;;
  noisy*) echo "Welcome"; echo "Warning: Permanently added" >&2; exec sh -c "$*" ;;
  proxied*) # a ProxyCommand in the client's process group; the second word of the name is its argument
    argument=${host#proxied-}
    sleep "${argument%-frozen}" </dev/null >/dev/null 2>&1 &
    echo $! >"${FAKE_SSH_LOG%/*}/proxy"
    case $host in *-frozen) exec sleep 60 ;; esac
    exec sh -c "$*" ;;
  refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
  stranger) echo "No ED25519 host key is known for stranger" >&2; echo "Host key verification failed." >&2; exit 255 ;;
  frozen) exec sleep 60 ;;
  nosudo) echo "sudo: a password is required" >&2; exit 1 ;;
  cut) # the connection breaks while the command runs
    exec 4<&0
    sh -c "$*" <&4 &
    sleep 0.3
    kill -9 $!
    echo "Connection to cut closed by remote host." >&2
    exit 255 ;;
  halfway) # only a part of what is sent arrives
    head -c 20 | sh -c "$*" ;;
esac
