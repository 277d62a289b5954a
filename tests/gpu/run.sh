#!/usr/bin/env bash
# What can only be seen on a GPU: a table on stdout, and in $OUT (default: the folder) gpu.jsonl with
# a line of JSON for each row, and gpu-logs with what each row printed. First the card itself, where
# a failure ends the run; then speed, then values.
#   tests/gpu/run.sh [folder]    a build with MOONSHARD_CUDA=ON (build/gpu, made if missing), or what
#                                pack.sh made of one
#   MOONSHARD_GPU_PLUGIN=build/release/cudasim tests/gpu/run.sh build/release
#                                the same over the simulation, with small models and without PyTorch;
#                                MS_CUDASIM_CARDS=4 adds the rows of several cards
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/gpu/programs.sh
build=${1:-build/gpu} bad=0 took=0 status=0 allowed=0
mkdir -p "${OUT:-$build}"
out=$(realpath "${OUT:-$build}")
logs=$out/gpu-logs json=$out/gpu.jsonl
rm -rf "$logs"
mkdir "$logs"
: >"$json"

if [ ! -e "$build/generated" ]; then
  cmake -S . -B "$build" -G Ninja -DMOONSHARD_CUDA=ON -DMOONSHARD_CUDA_ARCHITECTURES=native &&
    cmake --build "$build" >"$logs/build" 2>&1 || { tail -n 30 "$logs/build" && exit 1; }
fi
build=$(realpath "$build")
simulated=${MOONSHARD_GPU_PLUGIN:+yes}
plugin=$(realpath "${MOONSHARD_GPU_PLUGIN:-$build}")
draws=200 context=128 shape=() limit=60 cards=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
if [ -n "$simulated" ]; then
  draws=60 context=16 shape=(--context=16 --layers=1 --width=32 --heads=2) limit=600 cards=${MS_CUDASIM_CARDS:-1}
fi
one=CUDA_VISIBLE_DEVICES=0 # card for all ranks
[ -z "$simulated" ] || one=MS_CUDASIM_CARDS=1
most=4 # ranks, and micro-batches
[ "$cards" -lt 8 ] || most=8
size=(--tokens=$((most * context)) --micro-batches="$most" "${shape[@]}")
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

excerpt() { # excerpt LOG: the failed assertions of a test program, else the last lines
  { grep -A 2 -E '^ERROR: |^\[  ERROR|^not ok' "$logs/$1" || tail -n 15 "$logs/$1"; } | head -n 15 | sed 's/^/    /'
}

failed() { # failed NAME LOG [RESULT]: again with a wait after each launch, so that the error names its kernel
  local result=${3:-FAILED}
  if [ "$status" -eq 124 ] || { [ "$status" -eq 137 ] && [ "$took" -ge "$allowed" ]; }; then
    result="TIMED OUT after $allowed s"
  elif [ "$status" -ne 0 ]; then
    result="FAILED with exit code $status"
  fi
  row "$1" "$result" "\"log\":\"$logs/$2\""
  echo "    log: $logs/$2"
  excerpt "$2"
  if [ "$status" -ne 0 ] && [ "${result%%after*}" = "$result" ] &&
    ! MS_CUDA_SYNC=1 timeout -k 5 60 "${last[@]}" >"$logs/$2-sync" 2>&1; then
    echo "    with MS_CUDA_SYNC=1: $logs/$2-sync"
    excerpt "$2-sync"
  fi
  bad=1
}

timed() { # timed LOG LIMIT COMMAND...
  local name=$1 begin=$SECONDS
  allowed=$2 status=0
  shift 2
  last=("$@")
  timeout -k 5 "$allowed" "$@" >"$logs/$name" 2>&1 || status=$?
  took=$((SECONDS - begin))
  return "$status"
}

# -- the card --------------------------------------------------------------------------------------

cat README.md docs/*.md >"$logs/text" # a GPU machine has no package with a corpus
timed doctor 60 luajit bindings/moonshard doctor
if ! timed card 60 env MS_DEVICE=cuda "$build/tests/backend_test_card"; then
  failed 'first use of the card' card
  echo 'run.sh: stopped, because everything else needs what failed; moonshard doctor says:'
  cat "$logs/doctor"
  exit 1
fi
row 'first use of the card' "$(grep -oE '\[  PASSED  \] [0-9]+' "$logs/card" | awk '{print $NF}') passed"

version() { # version NAME: of doctor's line
  sed -n "s/^$1   *//p" "$logs/doctor" | tr -d '"' | head -n 1
}
took=0
torch=none
[ -n "$simulated" ] || torch=$(python3 -c 'import torch; print(torch.__version__, "CUDA", torch.version.cuda)' 2>/dev/null || echo none)
row card "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | sort | uniq -c |
  sed 's/^ *//' | grep . || grep -m 1 'compute capability' "$logs/card")" "$(printf '"driver":"%s","cudart":"%s","cublaslt":"%s","cudnn":"%s","nccl":"%s","torch":"%s","cards":%d' \
  "$(version driver)" "$(grep -oEm 1 'CUDA [0-9]+' "$logs/card" | cut -d' ' -f2)" "$(version cuBLASLt)" "$(version cuDNN)" \
  "$(version NCCL)" "$torch" "$cards")"
[ "$torch" != none ] || row PyTorch 'none: its rows are left out'

# -- rates of single things -----------------------------------------------------------------------

field() { # field FILE NAME
  grep -o "\"$2\":[0-9.e+-]*" "$logs/$1" | head -n 1 | cut -d: -f2
}

scaled() { # scaled FILE DIVISOR NAME...: numbers with commas
  local name
  for name in "${@:3}"; do
    awk -v x="$(field "$1" "$name")" -v d="$2" 'BEGIN { printf "%.4g, ", x / d }'
  done | sed 's/, $//'
}

rates() { # rates LABEL DIVISOR TEXT NAMES RATE KEY=VALUE...: a row of what rates.lua measures
  local log=${1//[^A-Za-z0-9]/-}
  if timed "$log" 60 env MS_DEVICE=cuda luajit tests/gpu/rates.lua "${@:5}" && grep -q '^{' "$logs/$log"; then
    # shellcheck disable=SC2086
    row "$1" "$(scaled "$log" "$2" $4) $3" "\"data\":$(grep "^{" "$logs/$log" | tail -n 1)"
  else
    failed "$1" "$log"
  fi
}

bytes=256000000 heads=(rows=16 heads=12 length=1024 width=64)
if [ -n "$simulated" ]; then
  bytes=2000000 heads=(rows=1 heads=2 length=32 width=64)
fi
rates 'copies on the card, to it, from it' 1e9 'GB/s' 'on_card to_card from_card' copy bytes="$bytes"
for n in 2 4 8; do
  [ "$cards" -lt "$n" ] || rates "all-gather, exchange, reduce-scatter, $n cards" 1e9 'GB/s a rank' \
    'all_gather exchange reduce_scatter' collectives bytes="$bytes" ranks="$n"
done
beside='no PyTorch'
if [ "$torch" != none ]; then
  if timed attention-torch 60 python3 tests/gpu/torch_train.py attention "${heads[@]}"; then
    beside="PyTorch $(scaled attention-torch 1e12 forward backward)"
  else
    failed 'attention, PyTorch' attention-torch
    beside='PyTorch failed'
  fi
fi
rates 'attention, forward, backward' 1e12 "TFLOP/s; $beside" 'forward backward' attention "${heads[@]}"

# -- speed and memory beside PyTorch --------------------------------------------------------------

ours() { # ours LOG LIMIT KEY=VALUE...
  timed "$1" "$2" env MS_LOG=info "${timing[@]}" MS_DEVICE=cuda luajit bench/rows.lua train peak=0 dtype=bf16 \
    text="$logs/text" "${@:3}" && grep -q '^{' "$logs/$1"
}

head_rates() { # head_rates LOG COLUMNS: of the products with so many logits: forward, gradients of input and weight
  awk -v v="$2" '/^gemm/ { if ($7 == v) y = $NF; else if ($9 + 0 == v) x = $NF; else if ($5 == v) w = $NF }
    END { if (y == "" || x == "" || w == "") exit 1; printf "%s, %s, %s", y, x, w }' "$logs/$1"
}

products() { # products LOG COLUMNS MORE KEY=VALUE...: TFLOP/s by shape from LOG-kernels; logits' beside those of MORE columns
  local log=$1 odd even
  sed -nE 's/^gemm ([^,]*), ([^,]*), batch ([0-9]+) .*[% ]([0-9.e+-]+)$/    \2, \1: \4/p' "$logs/$log-kernels" >"$logs/$log-products"
  if ours "$log-logits" "$limit" ranks=1 "${@:4}" layers=1 vocab="$3" steps=3 &&
    odd=$(head_rates "$log-kernels" "$2") && even=$(head_rates "$log-logits" "$3"); then
    row '  products, TFLOP/s' "logits $2: $odd; $3: $even" "\"data\":\"$logs/$log-products\""
    cat "$logs/$log-products"
  else
    failed '  products, TFLOP/s' "$log-logits" 'FAILED: no products of logits in the table of times'
  fi
}

speeds() { # speeds LABEL LIMIT RANKS KEY=VALUE...
  local label=$1 limit=$2 ranks=$3 name wait launch=() modes=(eager compile fsdp2) log=${1//[^A-Za-z0-9]/-} timing=()
  shift 3
  if ours "$log" "$limit" ranks="$ranks" "$@"; then
    row "$label, layout $(grep -om 1 'slots: layout [a-z]*' "$logs/$log" | cut -d' ' -f3)" \
      "$(awk -v s="$(field "$log" tokens_per_s)" -v f="$(field "$log" flops_per_token)" -v p="${peak:-}" -v w="$ranks" \
        -v b="$(field "$log" device_bytes)" -v e="$(field "$log" state_bytes)" -v n="$(field "$log" planned_bytes)" 'BEGIN {
          printf "%.0f tok/s, %.1f GiB", s, b / 2^30
          if (p) printf ", %.0f %% of peak", 100 * s * f / p / w
          printf ", state %.3f of plan", e / n }')" "\"data\":$(grep '^{' "$logs/$log" | tail -n 1)"
  else
    failed "$label" "$log"
  fi
  timing=(MS_CUDA_TIME=1)
  if ours "$log-kernels" "$limit" ranks="$ranks" "$@" steps=3; then
    row '  time by kernel' "$logs/$log-kernels"
    sed -n '/device time by kernel/,$p' "$logs/$log-kernels" | sed -n '2,14s/^/    /p'
    [ "$ranks" -gt 1 ] || [ "$label" != "$small_label" ] || products "$log" "${logits[@]}" "$@"
  else
    failed '  time by kernel' "$log-kernels"
  fi
  [ "$torch" != none ] || return 0
  [ "$ranks" -eq 1 ] || modes=(fsdp2) launch=(-m torch.distributed.run --nproc-per-node="$ranks")
  for name in "${modes[@]}"; do
    wait=$limit
    [ "$name" != compile ] || wait=$((3 * limit)) # compiling takes minutes
    if timed "$log-$name" "$wait" python3 "${launch[@]}" tests/gpu/torch_train.py "$name" text="$logs/text" "$@"; then
      row "  PyTorch $name" "$(awk -v s="$(field "$log-$name" tokens_per_s)" -v b="$(field "$log-$name" device_bytes)" \
        -v o="$(field "$log" tokens_per_s)" 'BEGIN { printf "%.0f tok/s, %.1f GiB; ours %.2f x", s, b / 2^30, o / s }')" \
        "\"data\":$(grep '^{' "$logs/$log-$name" | tail -n 1)"
    else
      failed "  PyTorch $name" "$log-$name"
    fi
  done
}

ranks=0 # one a card
for n in 2 4 8; do
  [ "$cards" -lt "$n" ] || ranks=$n
done
small_label='GPT-2 124M, T=1024, B=16' logits=(50257 50304)
small=(layers=12 width=768 heads=12 context=1024 rows=16 vocab=50257 warmup=5 steps=15)
large_label='GPT-2 1558M, T=1024, B=4'
large=(layers=48 width=1600 heads=25 context=1024 rows=4 vocab=50257 warmup=3 steps=5)
if [ -n "$simulated" ]; then
  small_label='GPT, tiny, in place of 124M' logits=(65 80)
  small=(layers=1 width=32 heads=2 context=16 rows=2 vocab=65 warmup=1 steps=2)
  large_label='GPT, tiny, in place of 1558M'
  large=(layers=2 width=32 heads=2 context=16 rows=1 vocab=65 warmup=1 steps=2)
fi
if [ "$torch" != none ]; then
  if timed peak 60 python3 tests/gpu/torch_train.py peak; then
    peak=$(field peak flops)
    row 'bf16 product, 8192 cubed, PyTorch' "$(scaled peak 1e12 flops) TFLOP/s"
  else
    failed 'bf16 product, 8192 cubed, PyTorch' peak
  fi
fi
speeds "$small_label" "$limit" 1 "${small[@]}"
speeds "$large_label" "$((limit * 3 / 2))" 1 "${large[@]}"
[ "$ranks" -eq 0 ] || speeds "  $ranks cards" "$((2 * limit))" "$ranks" "${small[@]}"

# -- bits -----------------------------------------------------------------------------------------

train() { # train NAME DEVICE DTYPE RANKS [VARIABLE=VALUE]...: losses in $logs/NAME.losses, the slots' $layout
  timed "$1" "$limit" env MS_LOG=info MS_DEVICE="$2" "${@:5}" luajit examples/train.lua --dtype="$3" --ranks="$4" \
    --data="$logs/text" --steps=20 "${size[@]}" --validate=0 --save=0 --sample=0 --log=1 --out="$logs/out-$1" &&
    grep -soE '"loss":[0-9.e+-]+' "$logs/out-$1/metrics.jsonl" | cut -d: -f2 >"$logs/$1.losses"
  layout=$(grep -om 1 'slots: layout [a-z]*' "$logs/$1" | cut -d' ' -f3)
  return "$status"
}

whole() { # whole NAME: it has a number for each step
  [ "$(cat "$logs/$1.losses" 2>/dev/null | wc -l)" -eq 20 ]
}

same() { # same LABEL NAME OTHER: OTHER has run last
  if [ "$status" -eq 0 ] && whole "$3" && cmp -s "$logs/$2.losses" "$logs/$3.losses"; then
    row "$1, layout $layout" 'the same bits'
  else
    failed "$1, layout ${layout:-unknown}" "$3" 'FAILED: losses have other bits'
  fi
}

close() { # close LABEL NAME OTHER BOUND TEXT: likewise
  local most
  most=$(paste "$logs/$2.losses" "$logs/$3.losses" 2>/dev/null |
    awk '{ d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > most) most = d } END { printf "%.1e", most }')
  if [ "$status" -ne 0 ]; then
    failed "$1" "$3"
  elif ! whole "$2" || ! whole "$3"; then
    failed "$1" "$3" "FAILED: not 20 losses in $2 and $3"
  elif awk -v m="$most" -v b="$4" 'BEGIN { exit m <= b }'; then
    failed "$1" "$3" "FAILED: losses differ by $most from $5"
  else
    row "$1, layout $layout" "losses within $most of $5"
  fi
}

bound=1e-5 # of losses in f32; those in bf16 differ in every operator's rounding
for dtype in f32 bf16; do
  train "cpu-$dtype" cpu "$dtype" 1
  train "1-$dtype" cuda "$dtype" 1
  close "GPT, 20 steps, $dtype" "cpu-$dtype" "1-$dtype" "$bound" "the CPU's"
  train "again-$dtype" cuda "$dtype" 1
  same "  again" "1-$dtype" "again-$dtype"
  for n in 2 4; do
    train "$n-$dtype" cuda "$dtype" "$n"
    same "  $n ranks" "1-$dtype" "$n-$dtype"
  done
  bound=2e-2
done

# -- several cards ---------------------------------------------------------------------------------

if [ "$ranks" -gt 0 ]; then
  for setting in MS_SLOTS=nccl MS_SLOTS=pull "$one"; do
    train "$setting" cuda f32 "$ranks" "$setting"
    same "  $ranks ranks, $setting" 1-f32 "$setting"
  done
  train unordered cuda f32 "$ranks" MS_SLOTS=nccl MS_NCCL_DETERMINISTIC=0
  close "  $ranks ranks, sums by NCCL" 1-f32 unordered 1e-5 'those in order'

  cat >"$logs/killed.lua" <<'END'
local ms = require 'moonshard'
local world = ms.dist.init { ranks = tonumber(arg[1]) }
local model = ms.fsdp.FSDP(ms.nn.Linear(64, 64))
for step = 1, 4 do
  if step == 3 and world.rank == 1 then
    os.execute('kill -9 ' .. io.open('/proc/self/stat'):read '*n')
  end
  model(ms.ones(2, 64)):sum():backward()
end
END
  timed killed 60 env MS_DEVICE=cuda MS_SLOTS=nccl luajit "$logs/killed.lua" "$ranks"
  if [ "$status" -ne 124 ] && grep -q 'rank 1 died (signal 9' "$logs/killed" &&
    [ "$(grep -oE '^.*rank [0-9]+: .*CommError: ' "$logs/killed" | grep -oE 'rank [0-9]+' |
    sort -u | wc -l)" -eq $((ranks - 1)) ]; then
    row "  a killed rank of $ranks" 'an error on all others'
  else
    failed "  a killed rank of $ranks" killed 'FAILED: not the errors of a killed rank on all others'
  fi
fi

# -- values ----------------------------------------------------------------------------------------

for program in "${programs[@]}"; do
  if timed "$program" "$limit" env "$one" MS_DEVICE=cuda MS_OP_DRAWS=$draws MS_PROGRAMS=20 "$build/tests/$program"; then
    row "$program" "$(grep -oE '\[  PASSED  \] [0-9]+' "$logs/$program" | awk '{n += $NF} END {print n}') passed"
  else
    failed "$program" "$program"
  fi
done
for spec in spec/reference/*_spec.lua; do
  name=$(basename "$spec" _spec.lua)
  timed "$name" "$limit" env "$one" MS_DEVICE=cuda "${busted[@]}" -o TAP "$spec"
  passed=$(grep '^ok' "$logs/$name" | grep -vc '# SKIP')
  if [ "$status" -ne 0 ] || grep -q '^not ok' "$logs/$name" || ! grep -q '^1\.\.' "$logs/$name"; then
    failed "$name" "$name"
  else
    row "$name" "$passed passed, $(grep -c '# SKIP' "$logs/$name") not there yet"
  fi
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
else
  took=0
  row compute-sanitizer 'none: memcheck and racecheck are left out'
fi

exit "$bad"
