#!/usr/bin/env bash
# Test and benchmark a checkout on a machine with a GPU, torch, triton and transformers, without network or installation.
#
#   tools/gpu.sh OUT [WHEELS]     WHEELS: a folder of wheels of what the machine lacks (pytest, hypothesis, pluggy, ...)
#   LIGER_ONLY=second_device tools/gpu.sh OUT [WHEELS]      of the kernels' tests those that `pytest -k` selects, no more
#
# OUT gets tests.log, bench.log, bench/ (what `liger bench` writes) and gpu.json (commit, versions, device, counts), and the
# exit status is 1 if a test failed, a suite ran none, died or ran out of time, or the benchmarks failed. All of it takes at
# most LIGER_TEST_SECONDS (300) + LIGER_BIG_SECONDS (120, tests that need most of the GPU's memory, by themselves) +
# LIGER_BENCH_SECONDS (600) and a minute; 0 leaves tests or benchmarks out. LIGER_SHA names the commit where git cannot.
set -u
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
wheels=${2:+$(cd "$2" && pwd)}
cd "$(dirname "$0")/.."
test_seconds=${LIGER_TEST_SECONDS:-300} big_seconds=${LIGER_BIG_SECONDS:-120} bench_seconds=${LIGER_BENCH_SECONDS:-600}
only=${LIGER_ONLY:-}
work=$(mktemp -d)
python=${PYTHON:-python3}

finish() { # also when something goes wrong on the way
    for log in "$work"/*.log; do
        [ ! -f "$log" ] || { echo "=== $(basename "$log" .log)" && cat "$log" && echo; }
    done >"$out/tests.log"
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' TERM INT

if [ -n "$wheels" ]; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
        --root-user-action=ignore --target "$work/site" "$wheels"/*.whl || exit 2
fi
ours=$("$python" tools/gpu_metadata.py "$work/meta") || exit 2
export PYTHONPATH="$work/site:$ours${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} PYTHONUNBUFFERED=1 TRITON_DEFAULT_FP_FUSION=1
export LIGER_SHA=${LIGER_SHA:-$(git rev-parse HEAD 2>/dev/null)}
unset TRITON_INTERPRET

suite() { # NAME, then arguments of pytest
    local name=$1
    shift
    timeout -k 5 "$test_seconds" "$python" -m pytest -q -p no:cacheprovider --durations=5 --junitxml="$work/$name.xml" "$@" \
        >"$work/$name.log" 2>&1
    echo $? >"$work/$name.rc"
}

kernels() { # EXPRESSION that chooses tests
    local workers=()
    ! "$python" -c "import xdist" 2>/dev/null || workers=(-n 3)
    for folder in packages/kernels-*/tests; do
        suite "$(basename "$(dirname "$folder")")" "$folder" -k "$1" "${workers[@]}" &
    done
}

everything() {
    kernels "not big"
    for folder in packages/models/*/tests; do # apart, as compilation takes longest
        name=models-$(basename "$(dirname "$folder")")
        suite "$name" "$folder" -k "not compile" &
        suite "$name-compile" "$folder" -k compile &
    done
    suite convergence-fp32 tests/test_convergence.py -k fp32 &
    suite convergence tests/test_convergence.py -k "not fp32" &
    if "$python" -c "import accelerate, peft" 2>/dev/null; then
        suite wrappers tests/test_wrappers.py -k "not fsdp and not ddp" &
    else
        echo "left out: accelerate or peft cannot be imported" >"$work/wrappers.log"
        echo "left out" >"$work/wrappers.rc"
    fi
    if "$python" -c "import accelerate, peft, torch; exit(torch.cuda.device_count() < 2)" 2>/dev/null; then
        suite parallel tests/test_parallel.py -k two_gpus &
    fi
    wait
    test_seconds=$big_seconds
    suite big packages/kernels-*/tests -k big # beside others the memory would not be enough
}

benchmarks() {
    rm "$work/bench.rc"
    timeout -k 5 $((bench_seconds + 60)) "$python" -m liger.bench --seconds "$bench_seconds" --out "$out/bench" \
        >"$out/bench.log" 2>&1
    echo $? >"$work/bench.rc"
}

echo "left out" >"$work/bench.rc" # what died without a status of its own counts as failed
if [ -n "$only" ]; then
    kernels "$only"
    wait
else
    [ "$test_seconds" = 0 ] || everything
    [ "$bench_seconds" = 0 ] || benchmarks
fi
"$python" tools/gpu_report.py "$work" "$out"
