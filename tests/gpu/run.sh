#!/usr/bin/env bash
# What can only be seen on a GPU, in one call of at most eight minutes: a table on stdout, and
# gpu.jsonl in $OUT (default: the folder) with a line of JSON for each row.
#   tests/gpu/run.sh [folder]    a build with MOONSHARD_CUDA=ON (build/gpu, made if missing), or what
#                                pack.sh made of one
#   MOONSHARD_GPU_PLUGIN=build/release/cudasim tests/gpu/run.sh build/release
#                                the same over the simulation, with small models and without PyTorch
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/gpu/programs.sh
build=${1:-build/gpu} bad=0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

if [ ! -e "$build/generated" ]; then
  cmake -S . -B "$build" -G Ninja -DMOONSHARD_CUDA=ON -DMOONSHARD_CUDA_ARCHITECTURES=native &&
    cmake --build "$build" >"$logs/build" 2>&1 || { tail -n 30 "$logs/build" && exit 1; }
fi
build=$(realpath "$build")
simulated=${MOONSHARD_GPU_PLUGIN:+yes}
plugin=$(realpath "${MOONSHARD_GPU_PLUGIN:-$build}")
json=${OUT:-$build}/gpu.jsonl
draws=200 size=(--tokens=512 --micro-batches=4) limit=60
if [ -n "$simulated" ]; then
  draws=100 size=(--tokens=64 --micro-batches=4 --context=16 --layers=1 --width=32 --heads=2) limit=300
fi
: >"$json"
export MOONSHARD_LIB=$build MS_PLUGIN_DIR=$plugin MS_TEST_DATA=$PWD/tests/fixtures
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;$PWD/bindings/?.lua;$PWD/bindings/?/init.lua;$MOONSHARD_LIB/generated/?.lua;;"
busted=(busted)
if [ -d "$build/bin" ]; then # a pack
  export PATH=$build/bin:$PATH
  LUA_PATH="$LUA_PATH$build/lua/?.lua;$build/lua/?/init.lua"
  export LUA_CPATH="$build/lua/?.so;;"
  nvidia=$(python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null | cut -d' ' -f1)
  LD_LIBRARY_PATH=$build/lib:$(find /usr/local/cuda/lib64/ "${nvidia:-/nonexistent}" -maxdepth 2 \
    -name 'lib*' -type d 2>/dev/null | tr '\n' ':')${LD_LIBRARY_PATH:-}
  export LD_LIBRARY_PATH
  busted=(luajit "$build/bin/busted.lua" --ignore-lua)
fi

row() { # row NAME RESULT [JSON FIELDS]
  printf '%-44s %-56s %5s s\n' "$1" "$2" "$took"
  printf '{"row":"%s","result":"%s","seconds":%s%s}\n' "$1" "$2" "$took" "${3:+,$3}" >>"$json"
}

failed() { # failed NAME LOG: again with a wait after each launch, so that the error names its kernel
  row "$1" FAILED
  tail -n 15 "$logs/$2" | sed 's/^/    /'
  if ! MS_CUDA_SYNC=1 timeout -k 5 60 "${last[@]}" >"$logs/$2-sync" 2>&1; then
    echo '    with MS_CUDA_SYNC=1:'
    tail -n 5 "$logs/$2-sync" | sed 's/^/    /'
  fi
  bad=1
}

timed() { # timed LOG LIMIT COMMAND...
  local name=$1 limit=$2 begin=$SECONDS status=0
  shift 2
  last=("$@")
  timeout -k 5 "$limit" "$@" >"$logs/$name" 2>&1 || status=$?
  took=$((SECONDS - begin))
  return "$status"
}

cat README.md docs/*.md >"$logs/text" # a GPU machine has no package with a corpus
took=0
row card "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo none)"

# -- operators and reference tests ----------------------------------------------------------------

for program in "${programs[@]}"; do
  if timed "$program" 60 env MS_DEVICE=cuda MS_OP_DRAWS=$draws MS_PROGRAMS=20 "$build/tests/$program"; then
    row "$program" "$(grep -oE '\[  PASSED  \] [0-9]+' "$logs/$program" | awk '{n += $NF} END {print n}') passed"
  else
    failed "$program" "$program"
  fi
done
for spec in spec/reference/*_spec.lua; do
  name=$(basename "$spec" _spec.lua)
  timed "$name" "$limit" env MS_DEVICE=cuda "${busted[@]}" -o TAP "$spec"
  passed=$(grep '^ok' "$logs/$name" | grep -vc '# SKIP')
  if grep -q '^not ok' "$logs/$name" || ! grep -q '^1\.\.' "$logs/$name"; then
    failed "$name" "$name"
  else
    row "$name" "$passed passed, $(grep -c '# SKIP' "$logs/$name") not there yet"
  fi
done

# -- bits -----------------------------------------------------------------------------------------

train() { # train NAME DEVICE DTYPE RANKS [VARIABLE=VALUE]...: its losses in $logs/NAME.losses
  timed "$1" "$limit" env MS_DEVICE="$2" "${@:5}" luajit examples/train.lua --dtype="$3" --ranks="$4" \
    --data="$logs/text" --steps=20 "${size[@]}" --validate=0 --save=0 --sample=0 --log=1 --out="$logs/out-$1" &&
    grep -o '"loss":[^,]*' "$logs/out-$1/metrics.jsonl" | cut -d: -f2 >"$logs/$1.losses"
}

same() { # same LABEL NAME OTHER
  if cmp -s "$logs/$2.losses" "$logs/$3.losses"; then
    row "$1" 'the same bits'
  else
    failed "$1" "$3"
  fi
}

for dtype in f32 bf16; do
  train "cpu-$dtype" cpu "$dtype" 1
  if train "1-$dtype" cuda "$dtype" 1; then
    row "GPT, 20 steps, $dtype" "losses within $(paste "$logs/cpu-$dtype.losses" "$logs/1-$dtype.losses" |
      awk '{ d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > most) most = d } END { printf "%.1e", most }') of the CPU's"
  else
    failed "GPT, 20 steps, $dtype" "1-$dtype"
  fi
  train "again-$dtype" cuda "$dtype" 1
  same "  again" "1-$dtype" "again-$dtype"
  for ranks in 2 4; do
    train "$ranks-$dtype" cuda "$dtype" "$ranks"
    same "  $ranks ranks" "1-$dtype" "$ranks-$dtype"
  done
done

sanitize() { # sanitize TOOL COMMAND...: a row
  if timed "$1" 60 env MS_DEVICE=cuda MS_OP_DRAWS=5 compute-sanitizer --tool "$1" --error-exitcode 9 "${@:2}"; then
    row "$1" "$(grep -oE '(ERROR|RACECHECK) SUMMARY.*' "$logs/$1")"
  else
    failed "$1" "$1"
  fi
}

if command -v compute-sanitizer >/dev/null; then
  sanitize memcheck luajit examples/train.lua --data="$logs/text" --ranks=1 --steps=1 --tokens=128 --layers=1 --validate=0 --save=0 --sample=0 \
    --out="$logs/memcheck-out"
  MS_OP=attention sanitize racecheck "$build/tests/ops_test_values"
fi

# -- speed and memory beside PyTorch --------------------------------------------------------------

field() { # field FILE NAME
  grep -o "\"$2\":[0-9.e+]*" "$logs/$1" | head -n 1 | cut -d: -f2
}

speeds() { # speeds LABEL LIMIT KEY=VALUE...
  local label=$1 limit=$2 name speed wait
  shift 2
  if timed ours "$limit" env MS_DEVICE=cuda luajit bench/rows.lua train ranks=1 dtype=bf16 "$@"; then
    row "$label" "$(awk -v s="$(field ours tokens_per_s)" -v f="$(field ours flops_per_token)" -v p="${peak:-}" \
      -v b="$(field ours device_bytes)" -v e="$(field ours state_bytes)" -v n="$(field ours planned_bytes)" 'BEGIN {
        printf "%.0f tok/s, %.1f GiB", s, b / 2^30
        if (p) printf ", %.0f %% of peak", 100 * s * f / p
        printf ", state %.3f of plan", e / n }')" "\"data\":$(tail -n 1 "$logs/ours")"
  else
    failed "$label" ours
  fi
  [ -z "$simulated" ] || return 0
  for name in eager compile fsdp2; do
    wait=$limit
    [ "$name" != compile ] || wait=$((3 * limit)) # compiling takes minutes
    if timed torch "$wait" python3 tests/gpu/torch_train.py "$name" "$@"; then
      speed=$(field torch tokens_per_s)
      row "  PyTorch $name" "$(awk -v s="$speed" -v b="$(field torch device_bytes)" -v o="$(field ours tokens_per_s)" \
        'BEGIN { printf "%.0f tok/s, %.1f GiB; ours %.2f x", s, b / 2^30, o / s }')" "\"data\":$(tail -n 1 "$logs/torch")"
    else
      failed "  PyTorch $name" torch
    fi
  done
}

if [ -n "$simulated" ]; then
  speeds 'GPT, tiny' 60 layers=1 width=32 heads=2 context=16 rows=2 vocab=64 warmup=1 steps=2
else
  timed peak 60 python3 tests/gpu/torch_train.py peak && peak=$(field peak flops) &&
    row 'bf16 product, 8192 cubed, PyTorch' "$(awk -v p="$peak" 'BEGIN { printf "%.0f TFLOP/s", p / 1e12 }')"
  speeds 'GPT-2 124M, T=1024, B=16' 60 layers=12 width=768 heads=12 context=1024 rows=16 vocab=50257 warmup=5 steps=15
  speeds 'GPT-2 1558M, T=1024, B=4' 90 layers=48 width=1600 heads=25 context=1024 rows=4 vocab=50257 warmup=3 steps=5
fi
exit "$bad"
