#!/usr/bin/env bash
# Jobs on several hosts: network namespaces of this machine, connected by a bridge. Trains by
# `moonshard run --hosts` and compares with one host; then breaks hosts and ranks in the middle of a
# run. Ends with "N passed, N failed". Skips where namespaces cannot be made (needs root).
#   tests/net/hosts.sh            from the root of the tree, after ./dev build
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export MOONSHARD_LIB=$PWD/build/release
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/bindings/?.lua;$PWD/bindings/?/init.lua;$MOONSHARD_LIB/generated/?.lua;;"
HOSTS=4 net=ms$$ work=$(mktemp -d) passed=0 failed=0

address() { echo "10.77.0.$(($1 + 1))"; }
space() { echo "$net-$1"; }

cleanup() {
  local h
  for ((h = 0; h < HOSTS; h++)); do
    ip netns pids "$(space "$h")" 2>/dev/null | xargs -r kill -9 2>/dev/null
    ip netns del "$(space "$h")" 2>/dev/null
  done
  ip link del "$net" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT

make_hosts() {
  local h
  ip link add "$net" type bridge && ip link set "$net" up || return 1
  for ((h = 0; h < HOSTS; h++)); do
    ip netns add "$(space "$h")" &&
      ip link add "$net$h" type veth peer name eth0 netns "$(space "$h")" &&
      ip link set "$net$h" master "$net" up &&
      ip -n "$(space "$h")" addr add "$(address "$h")/24" dev eth0 &&
      ip -n "$(space "$h")" link set eth0 up && ip -n "$(space "$h")" link set lo up || return 1
  done
}

if ! make_hosts 2>"$work/why"; then
  echo "hosts: skipped, network namespaces cannot be made: $(head -n 1 "$work/why")"
  echo "0 passed, 0 failed"
  exit 0
fi

# What --rsh starts: HOST sh -s in the host's namespace, where $work/local is another folder.
cat >"$work/rsh" <<END
#!/bin/sh
host=\$((\${1##*.} - 1)); shift
mkdir -p $work/disk\$host
exec ip netns exec $net-\$host sh -c 'mount --bind "\$0" $work/local; exec "\$@"' $work/disk\$host "\$@"
END
mkdir "$work/local"
chmod +x "$work/rsh"

hosts() { # hosts HOSTS RANKS: the list for --hosts
  local h list=
  for ((h = 0; h < $1; h++)); do list+=,$(address "$h"):$2; done
  echo "${list#,}"
}

run() { # run HOSTS RANKS SCRIPT...: from host 0
  ip netns exec "$(space 0)" timeout 120 luajit bindings/moonshard run --no-prefix \
    --hosts="$(hosts "$1" "$2")" --rsh="$work/rsh" --wait=20 "${@:3}" 2>&1
}

check() { # check NAME CONDITION...
  if "${@:2}"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "not ok - $1"
  fi
}

# -- equal bits ------------------------------------------------------------------------------------

train=(examples/train.lua --data=docs/distributed.md --steps=4 --layers=2 --width=64 --heads=2 --context=32
  --tokens=512 --micro-batches=8 --validate=0 --save=2 --sample=0 --hash)
hash_of() { grep -oE 'parameters [0-9a-f]{16}' | head -n 1; }

for strategy in FULL_SHARD NO_SHARD; do
  one=$(luajit bindings/moonshard run -n 4 "${train[@]}" --strategy=$strategy --out="$work/one-$strategy" 2>&1 | hash_of)
  for shape in "2 2" "4 1"; do
    read -r h n <<<"$shape"
    many=$(run "$h" "$n" "${train[@]}" --strategy=$strategy --out="$work/$h-$n-$strategy" | hash_of)
    check "$strategy on $h hosts with $n ranks each: '$many', one host '$one'" [ "${many:-none}" = "$one" ]
  done
done
three=$(run 3 1 "${train[@]}" --tokens=384 --micro-batches=6 --out="$work/three" | hash_of)
one=$(luajit bindings/moonshard run -n 3 "${train[@]}" --tokens=384 --micro-batches=6 --out="$work/three-one" 2>&1 | hash_of)
check "three hosts with a rank each: '$three', one host '$one'" [ "${three:-none}" = "$one" ]

ip netns exec "$(space 0)" timeout 60 luajit bindings/moonshard doctor --hosts="$(hosts 3 1)" --rsh="$work/rsh" >"$work/log" 2>&1
check "doctor: $(cat "$work/log")" grep -qE 'hosts 1 and 2  latency [0-9]+ us, [0-9.]+ GiB/s' "$work/log"

# -- failures --------------------------------------------------------------------------------------

cat >"$work/endless.lua" <<'END'
local ms = require 'moonshard'
ms.dist.init()
local model = ms.fsdp.FSDP(ms.nn.Sequential { ms.nn.Linear(256, 256), ms.nn.Linear(256, 256) })
local opt = ms.optim.SGD(model:parameters(), { lr = 0.1 })
local file = assert(io.open(arg[1] .. '/rank' .. ms.dist.rank(), 'w'))
file:write(io.open('/proc/self/stat'):read('*n'))
file:close()
local began = os.time()
while os.time() - began < 30 do
  model(ms.ones(4, 256)):sum():backward()
  opt:step()
end
END

now_ms() { echo $(($(date +%s%N) / 1000000)); }
parent() { ps -o ppid= -p "$1" | tr -d ' '; }
ranks_run() { # all four have written their process numbers
  for _ in $(seq 100); do
    [ "$(cat "$work"/rank? 2>/dev/null | wc -w)" -eq 0 ] || [ "$(ls "$work"/rank? | wc -l)" -lt 4 ] || return 0
    sleep 0.1
  done
  return 1
}

breaks() { # breaks NAME PATTERN COMMAND...: the job ends within 1.5 s with this error, and leaves nothing
  local name=$1 pattern=$2 begin end log=$work/log
  rm -f "$work"/rank?
  run 2 2 "$work/endless.lua" "$work" >"$log" &
  local job=$!
  ranks_run
  sleep 0.5
  begin=$(now_ms)
  "${@:3}"
  for _ in $(seq 100); do # host 0's ranks have failed
    [ -e "/proc/$(cat "$work/rank0")" ] || break
    sleep 0.05
  done
  end=$(now_ms)
  check "$name: after $((end - begin)) ms" [ $((end - begin)) -le 2500 ]
  wait $job
  check "$name: exit code" [ $? -ne 0 ]
  check "$name: $(grep moonshard: "$log" | head -n 3)" grep -qE "$pattern" "$log"
  recover
  sleep 0.3
  check "$name: processes left" [ -z "$(ip netns pids "$(space 0)")$(ip netns pids "$(space 1)")" ]
}
recover() { :; }

breaks 'ranks of two hosts killed at once' 'rank (0|2) died' eval 'kill -9 $(cat $work/rank0) $(cat $work/rank2)'
check "ranks of two hosts killed at once, one cause: $(grep '^moonshard: rank . died' "$work/log")" \
  [ "$(grep -oE '^moonshard: rank . died' "$work/log" | sort -u | wc -l)" -eq 1 ]
MS_NET=ucx breaks 'a killed rank, by UCX' 'rank 2 died \(signal 9, Killed\) .* while this rank waited in .* of unit' \
  eval 'kill -9 $(cat $work/rank2)'

launcher_of_2() { parent "$(parent "$(cat "$work/rank2")")"; }
breaks 'a killed rank' 'rank 2 died \(signal 9, Killed\) \(pid [0-9]+\) while this rank waited in .* of unit' \
  eval 'kill -9 $(cat $work/rank2)'
breaks 'a killed launcher' 'host 1 \(10.77.0.2, ranks 2 to 3\) is unreachable: its launcher has ended' \
  eval 'kill -9 $(launcher_of_2)'
recover() { kill -CONT "$stopped" 2>/dev/null; sleep 2.5; }
stop_launcher() { stopped=$(launcher_of_2) && kill -STOP "$stopped"; }
breaks 'a stopped launcher' 'host 1 .* is unreachable: no sign of life' stop_launcher
recover() { ip -n "$(space 1)" link set eth0 up; sleep 2.5; }
breaks 'a cut link' 'host 1 .* is unreachable: no sign of life' ip -n "$(space 1)" link set eth0 down
recover() { :; }

# -- ranks that no launcher of ours started --------------------------------------------------------

plain() { # plain SCRIPT...: two ranks on each of two hosts
  local r pids=()
  for r in 0 1 2 3; do
    MS_RANK=$r MS_WORLD=4 MS_LOCAL_RANK=$((r % 2)) MS_LOCAL_WORLD=2 MS_MASTER="$(address 0):29600" \
      ip netns exec "$(space $((r / 2)))" timeout 120 luajit "$@" 2>&1 &
    pids+=($!)
  done
  wait "${pids[@]}"
}

one=$(luajit bindings/moonshard run -n 4 "${train[@]}" --out="$work/plain-one" 2>&1 | hash_of)
plain "${train[@]}" --out="$work/plain" >"$work/log"
check "started by hand: $(grep moonshard: "$work/log" | head -n 2)" [ "$(hash_of <"$work/log")" = "$one" ]
check 'started by hand, and said' grep -q '4 ranks on 2 hosts (shm+tcp), started by plain' "$work/log"
rm -f "$work"/rank?
plain "$work/endless.lua" "$work" >"$work/log" 2>/dev/null &
job=$!
ranks_run && sleep 0.5 && kill -9 "$(cat "$work/rank3")"
wait $job
check "started by hand, a killed rank: $(grep CommError "$work/log" | head -n 2)" \
  [ "$(grep -cE 'CommError: rank 3 ended without leaving its job \(pid [0-9]+\) while this rank' "$work/log")" -eq 3 ]
if command -v mpirun >/dev/null; then
  mpirun --allow-run-as-root --oversubscribe -n 4 luajit "${train[@]}" --out="$work/mpi" >"$work/log" 2>&1
  check "mpirun: $(head -n 3 "$work/log")" [ "$(hash_of <"$work/log")" = "$one" ]
fi

# -- restarts --------------------------------------------------------------------------------------

cat >"$work/once.lua" <<'END'
local ms, ffi = require 'moonshard', require 'ffi'
ffi.cdef 'int kill(int, int); int getpid(void);'
ms.dist.init()
ms.manual_seed(1)
local model = ms.fsdp.FSDP(ms.nn.Linear(64, 64))
local opt = ms.optim.SGD(model:parameters(), { lr = 0.1, momentum = 0.9 })
local manager = ms.checkpoint.Manager { root = arg[1], keep = 2 }
local meta = manager:resume { model = model, optimizer = opt }
for step = (meta and meta.step or 0) + 1, 6 do
  if step == 4 and arg[2] == 'dies' and not os.getenv 'MS_RESTART' and ms.dist.rank() == 3 then
    ffi.C.kill(ffi.C.getpid(), 9)
  end
  (model(ms.ones(4, 64) * step) - 1):pow(2):mean():backward()
  opt:step()
  opt:zero_grad()
  if step % 2 == 0 then manager:save { step = step, model = model, optimizer = opt } end
end
local hash = model:hash()
if ms.dist.rank() == 0 then print('parameters ' .. hash) end
END
whole=$(run 2 2 "$work/once.lua" "$work/whole" | hash_of)
run 2 2 --restarts=1 "$work/once.lua" "$work/broken" dies >"$work/log"
check "restarted: $(cat "$work/log"), whole: $whole" [ "$(hash_of <"$work/log")" = "${whole:-none}" ]
check 'restarted, and said' grep -q 'the job failed with code 137: restart 1 of 1' "$work/log"
run 2 2 --restarts=1 "$work/once.lua" "$work/local" dies >"$work/log"
check "a folder on each host: $(cat "$work/log"), whole: $whole" [ "$(hash_of <"$work/log")" = "${whole:-none}" ]
files="$(cd "$work" && echo {local,disk1}/step-00000006/*)"
check "files of each host: $files" grep -qE '^local.*manifest.json [^ ]*-00000-of-[^ ]* [^ ]*-00001-of-[^ ]* disk1.*manifest.json [^ ]*-00002-of-[^ ]* [^ ]*-00003-of-[^ ]*$' <<<"$files"
check "old ones are removed on each host" [ "$(cd "$work" && echo {local,disk1}/step-*)" = \
  "$(echo {local,disk1}/step-0000000{4,6})" ]
passes_over() { # passes_over NAME: resumes from step 4, and saves step 6 again
  run 2 2 "$work/once.lua" "$work/local" >"$work/log"
  check "$1: $(cat "$work/log")" grep -q 'a broken checkpoint is passed over' "$work/log"
  check "$1, bits" [ "$(hash_of <"$work/log")" = "${whole:-none}" ]
}
cp -r "$work/disk1/step-00000006" "$work/before"
rm "$work"/disk1/step-00000006/rank-00003-*
passes_over 'a lost file of a host'
rm -r "$work/disk1/step-00000006" && mv "$work/before" "$work/disk1/step-00000006"
passes_over 'another checkpoint of that name on a host'
run 2 1 "$work/once.lua" "$work/local" >"$work/log"
check "two ranks get the files of four: $(cat "$work/log")" [ "$(hash_of <"$work/log")" = "${whole:-none}" ]
check "one host has half of the files" grep -q '2 of 4 files are on the hosts of this job; the checkpoint was saved in folders of 2 hosts' \
  <(luajit "$work/once.lua" "$work/local" 2>&1)

# -- hosts that do not fit -------------------------------------------------------------------------

other_secret() {
  (MOONSHARD_SECRET=a ip netns exec "$(space 0)" timeout 20 luajit bindings/moonshard run \
    --hosts="$(hosts 2 1)" --host=0 --wait=3 "$work/endless.lua" "$work" >"$work/log" 2>&1) &
  sleep 0.5
  MOONSHARD_SECRET=b ip netns exec "$(space 1)" timeout 20 luajit bindings/moonshard run \
    --hosts="$(hosts 2 1)" --host=1 --wait=3 "$work/endless.lua" "$work" >"$work/log1" 2>&1
  wait
}
other_secret
check "another secret, host 0: $(cat "$work/log")" grep -q 'host 1 of 2 has not come to 10.77.0.1:29500 within 3 s' "$work/log"
check "another secret, host 1: $(cat "$work/log1")" grep -q 'host 0 closed the connection' "$work/log1"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
