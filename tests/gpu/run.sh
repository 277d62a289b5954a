#!/usr/bin/env bash
# What can only be seen on a GPU, in one call of at most eight minutes: builds the plug-in, then
# prints a table of what ran and what it gave.
#   tests/gpu/run.sh [build folder]
#   MOONSHARD_GPU_PLUGIN=build/release/cudasim tests/gpu/run.sh: the same without nvcc and a GPU
# ARCHITECTURES (default: native) and STEPS (20) may be set.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:-build/gpu} steps=${STEPS:-20} bad=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

row() { # row NAME RESULT SECONDS
  printf '%-34s %-44s %6s s\n' "$1" "$2" "$3"
}

timed() { # timed NAME LIMIT COMMAND...: its output in $logs/NAME
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  timeout "$limit" "$@" >"$logs/$name" 2>&1 || status=$?
  took=$((SECONDS - begin))
  return "$status"
}

check() { # check NAME LIMIT COMMAND...: a row
  local name=$1 result
  if timed "$@"; then
    result=$(grep -oE '\[  PASSED  \] [0-9]+' "$logs/$name" | tail -n 1 | awk '{print $NF " passed"}')
    row "$name" "${result:-ok}" "$took"
  else
    row "$name" "FAILED" "$took"
    tail -n 15 "$logs/$name" | sed 's/^/    /'
    bad=1
  fi
}

if [ -n "${MOONSHARD_GPU_PLUGIN:-}" ]; then
  build=build/release plugin=$PWD/$MOONSHARD_GPU_PLUGIN
else
  check configure 60 cmake -S . -B "$build" -G Ninja -DMOONSHARD_CUDA=ON \
    -DMOONSHARD_CUDA_ARCHITECTURES="${ARCHITECTURES:-native}"
  check build 240 cmake --build "$build" --target moonshard moonshard_lua moonshard_onednn moonshard_cuda \
    ops_test_values ops_test_edges optim_test_step optim_test_clip
  plugin=$PWD/$build
fi
export MOONSHARD_LIB=$PWD/$build MS_TEST_DATA=$PWD/tests/fixtures
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/bindings/?.lua;$PWD/bindings/?/init.lua;$MOONSHARD_LIB/generated/?.lua;;"
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

for test in ops_test_values ops_test_edges optim_test_step optim_test_clip; do
  check "$test" 120 env MS_DEVICE=cuda MS_PLUGIN_DIR="$plugin" MS_OP_DRAWS=200 "$build/tests/$test"
done

train() { # train DEVICE DTYPE: losses in $logs/DEVICE-DTYPE
  timed "train-$1-$2" 60 env MS_DEVICE="$1" MS_PLUGIN_DIR="$plugin" luajit examples/train.lua --ranks=1 \
    --dtype="$2" --steps="$steps" --tokens=256 --validate=0 --save=0 --sample=0 --log=1 --out="$logs/$1-$2"
}

# The largest relative distance of the losses of two runs.
distance() {
  paste <(grep -o '"loss":[0-9.]*' "$1/metrics.jsonl" | cut -d: -f2) \
    <(grep -o '"loss":[0-9.]*' "$2/metrics.jsonl" | cut -d: -f2) |
    awk '{ d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > most) most = d } END { printf "%.1e", most }'
}

for dtype in f32 bf16; do
  if train cpu "$dtype" && train cuda "$dtype"; then
    speed=$(grep -o '"tokens_per_s":[0-9]*' "$logs/cuda-$dtype/metrics.jsonl" | tail -n 1 | cut -d: -f2)
    row "GPT, $steps steps, $dtype" "loss within $(distance "$logs/cpu-$dtype" "$logs/cuda-$dtype"), $speed tok/s" "$took"
  else
    row "GPT, $steps steps, $dtype" FAILED "$took"
    tail -n 15 "$logs"/train-*-"$dtype" | sed 's/^/    /'
    bad=1
  fi
done
mv "$logs/cuda-f32" "$logs/first"
if train cuda f32 && cmp -s <(grep -o '"loss":[0-9.]*' "$logs/first/metrics.jsonl") \
  <(grep -o '"loss":[0-9.]*' "$logs/cuda-f32/metrics.jsonl"); then
  row 'GPT again, f32' 'the same bits' "$took"
else
  row 'GPT again, f32' FAILED "$took"
  bad=1
fi
exit "$bad"
