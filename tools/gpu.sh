#!/usr/bin/env bash
# Test and benchmark a checkout on a machine with a GPU, torch, triton and transformers, without network or installation.
#
#   tools/gpu.sh OUT [WHEELS]     WHEELS: a folder of wheels of what the machine lacks (pytest, hypothesis, pluggy, ...)
#   LIGER_ONLY=second_device tools/gpu.sh OUT [WHEELS]      of the kernels' tests those that `pytest -k` selects, no more
#   LIGER_GROUPS="models convergence" tools/gpu.sh OUT [WHEELS]      of all tests these: kernels models convergence ecosystem
#   LIGER_WORKERS=5 tools/gpu.sh OUT [WHEELS]       processes for each suite that can be shared out, where pytest-xdist is
#
# OUT gets tests.log, bench.log, bench/ (what `liger bench` writes), gpu.json (commit, versions, device, counts) and
# convergence.md (a row for each model). The exit status is 1 if a test failed, a suite ran none, died or ran out of time,
# or the benchmarks failed. All of it takes at most LIGER_TEST_SECONDS (300) + LIGER_BIG_SECONDS (120, tests that need
# most of the GPU's memory, by themselves) + LIGER_BENCH_SECONDS (600) and a minute; 0 leaves tests or benchmarks out.
# LIGER_SHA names the commit where git cannot.
set -u
[ $# -ge 1 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 2; }
every="kernels models convergence ecosystem"
groups=${LIGER_GROUPS:-$every}
for group in $groups; do # before any of them starts
    case " $every " in *" $group "*) ;; *) echo "LIGER_GROUPS has $group, expected some of: $every" >&2 && exit 2 ;; esac
done
share=${LIGER_WORKERS:-3}
case $share in *[!0-9]* | 0*) echo "LIGER_WORKERS is $share, expected a number of processes, 1 or more" >&2 && exit 2 ;; esac
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

workers=()
! "$python" -c "import xdist" 2>/dev/null || workers=(-n "$share")

suite() { # NAME, then arguments of pytest
    local name=$1
    shift
    timeout -k 5 "$test_seconds" "$python" -m pytest -q -p no:cacheprovider --durations=5 --junitxml="$work/$name.xml" "$@" \
        >"$work/$name.log" 2>&1
    echo $? >"$work/$name.rc"
}

kernels() { # EXPRESSION that chooses tests
    for folder in packages/kernels-*/tests; do
        suite "$(basename "$(dirname "$folder")")" "$folder" -k "$1" "${workers[@]}" &
    done
}

models() { # what compiles apart, as it takes longest
    local name
    for folder in packages/models/*/tests; do
        name=models-$(basename "$(dirname "$folder")")
        suite "$name" "$folder" -k "not compile" &
        suite "$name-compile" "$folder" -k compile &
    done
}

convergence() { # of other versions of transformers than the pinned one, what upstream changed is skipped and named
    LIGER_DRIFT=1 suite convergence-fp32 tests/test_convergence.py -k fp32 "${workers[@]}" &
    LIGER_DRIFT=1 suite convergence tests/test_convergence.py -k "not fp32" "${workers[@]}" &
}

ecosystem() {
    local compat
    suite compile tests/test_compile.py &
    suite memory tests/test_memory.py &
    compat=$("$python" tools/gpu_metadata.py "$work/meta-compat" liger-compat) # not beside the others: it hides a peer
    PYTHONPATH=$compat:$PYTHONPATH suite compat packages/compat/tests "${workers[@]}" &
    if "$python" -c "import accelerate, peft" 2>/dev/null; then
        suite wrappers tests/test_wrappers.py -k "not fsdp and not ddp" &
        suite peft tests/test_peft.py packages/integrations/peft/tests &
    else
        echo "left out: accelerate or peft cannot be imported" | tee "$work/wrappers.log" >"$work/peft.log"
        echo "left out" | tee "$work/wrappers.rc" >"$work/peft.rc"
    fi
    if "$python" -c "import accelerate, peft, torch; exit(torch.cuda.device_count() < 2)" 2>/dev/null; then
        suite parallel tests/test_parallel.py -k two_gpus &
    fi
}

everything() {
    for group in $groups; do
        case $group in kernels) kernels "not big" ;; *) "$group" ;; esac
    done
    wait
    case " $groups " in *" kernels "*)
        test_seconds=$big_seconds
        suite big packages/kernels-*/tests -k big ;; # beside others the memory would not be enough
    esac
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
[ ! -f "$work/convergence.xml" ] || "$python" tools/convergence_table.py "$work"/convergence*.xml --out "$out/convergence.md"
"$python" tools/gpu_report.py "$work" "$out"
