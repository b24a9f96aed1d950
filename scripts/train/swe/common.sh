# Sourced by the launchers: reads the variables of variables.txt, refuses what contradicts, and runs `stacx train`.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
EXAMPLES=$(cd "$HERE/../../../examples/swe_tasks" && pwd)
source "$HERE/../run.sh"

# launch grpo|sft|opd|dagger|aggrevate 4b|8b [stacx flag ...]: ends with the exit code of `stacx train`.
launch() {
    local method=$1 size=$2
    shift 2
    LAUNCHER=${method}_$size
    read_variables "$method" "$size"
    refuse_contradictions "$method"
    choose_recipe "$method"
    choose_tasks "$method"
    DRY_RUN=0
    [[ " $* " != *" --dry-run "* ]] || DRY_RUN=1
    [ "$PRINT$DRY_RUN" != 00 ] || refuse_surroundings "$method"
    if [ "$SMOKE" = 1 ]; then
        smoke
    else
        one_node "$size"
    fi
    if [ "$method" != grpo ]; then
        teach "$method"
    fi
    finish stacx train "${recipe[@]}" --output-dir "$RUN" --resume auto "${flags[@]}" "${engine[@]}" "$@"
}

# refuse SENTENCE: ends with the exit code of wrong usage.
refuse() {
    echo "error: $*" >&2
    exit 2
}

# fail SENTENCE: ends with the exit code of a run that failed.
fail() {
    echo "error: $*" >&2
    exit 1
}

# finish COMMAND...: as `run`, but the command takes the place of this shell, and so gets its signals.
finish() {
    if [ "$PRINT" = 1 ]; then
        run "$@"
    else
        exec "$@"
    fi
}

# trim VARIABLE...: takes the spaces at both ends of its value.
trim() {
    local each
    for each in "$@"; do
        read -r "${each?}" <<<"${!each}"
    done
}

# read_variables METHOD SIZE: sets every variable that is unset to its default. `flags` become those that the table
# passes on, `play` those of episodes; `given` holds the names of variables that were set. Those of other launchers are
# unset.
read_variables() {
    local name readers default smoke flag meaning section="" chosen=""
    local -A seen=()
    declare -gA given=()
    [ "$1" != dagger ] || chosen=${RECIPE:-online_dagger}
    flags=() play=() evaluation=()
    while IFS='|' read -r name readers default smoke flag meaning; do
        trim name readers default smoke flag
        case $name in
        "" | "#"*) continue ;;
        "["*) section=$name && continue ;;
        esac
        [ "${seen[$name]:-}" != 1 ] || continue
        seen[$name]=0
        case ",${readers// /}," in *,all,* | *",$1,"* | *",$2,"* | *",${chosen:-none},"*) ;; *) continue ;; esac
        seen[$name]=1
        if [ -n "${!name+x}" ]; then
            given[$name]=1
        else
            [ "${SMOKE:-0}" = 1 ] && default=$smoke
            eval "$name=\"$default\""
        fi
        case $flag in "" | "("*) continue ;; esac
        [ -n "${!name}" ] || continue
        case $section in
        "[Tasks]") play+=("$flag" "${!name}") ;;
        "[Evaluation]") evaluation+=("$flag" "${!name}") ;;
        *) flags+=("$flag" "${!name}") ;;
        esac
    done <"$HERE/variables.txt"
    for name in "${!seen[@]}"; do
        [ "${seen[$name]}" = 1 ] || unset "$name"
    done
    RUN=$CACHE_ROOT/runs/$RUN_TAG
}

# refuse_contradictions METHOD
refuse_contradictions() {
    local name
    for name in SMOKE PRINT USE_WANDB SKIP_EVAL_BEFORE_TRAIN; do
        [[ ${!name} =~ ^[01]$ ]] || refuse "$name must be 0 or 1, not '${!name}'"
    done
    for name in STUDENT_GPUS TENSOR_PARALLEL ROLLOUT_GPUS TEACHER_GPUS TEACHER_PORT ROLLOUT_BATCH_SIZE \
        GLOBAL_BATCH_SIZE N_SAMPLES_PER_PROMPT MAX_SEQUENCE_LEN EVAL_TASKS; do
        # Without zeros in front, which make octal numbers for bash; those of other launchers are unset.
        [[ ${!name-0} =~ ^(0|[1-9][0-9]{0,8})$ ]] || refuse "$name must be a whole number, not '${!name}'"
    done
    [[ $RUN_TAG =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]*$ ]] || refuse "RUN_TAG names a folder: it may have letters, digits" \
        "and _.- only, and begins with a letter, a digit or _"
    [ -n "$CACHE_ROOT" ] || refuse "CACHE_ROOT is empty: name a folder for runs and corpora"
    [ "$STUDENT_GPUS" -eq "$TENSOR_PARALLEL" ] || refuse "STUDENT_GPUS is $STUDENT_GPUS and TENSOR_PARALLEL is" \
        "$TENSOR_PARALLEL: the student is one model shared by all its GPUs, so set both to the same number"
    local episodes=$((ROLLOUT_BATCH_SIZE * ${N_SAMPLES_PER_PROMPT:-1}))
    [ "$GLOBAL_BATCH_SIZE" -le "$episodes" ] || refuse "GLOBAL_BATCH_SIZE is $GLOBAL_BATCH_SIZE, but a rollout has" \
        "$episodes episodes; lower it, or raise ROLLOUT_BATCH_SIZE"
    [ -n "$TASKS" ] || refuse "TASKS is not set: name a folder of tasks, or try the launcher with SMOKE=1"
    [ -d "$TASKS" ] || refuse "TASKS is '$TASKS', which is no folder"
    [[ $TASKS != *[?]* ]] || refuse "TASKS is '$TASKS', but options begin behind a question mark; rename the folder"
    [ -z "$HELD_OUT" ] || [ -f "$HELD_OUT" ] || refuse "HELD_OUT is '$HELD_OUT', which is no file"
    if [ "$EVAL_TASKS" -eq 0 ]; then
        for name in EVAL_INTERVAL EVAL_TEMPERATURE SKIP_EVAL_BEFORE_TRAIN; do
            [ -z "${given[$name]:-}" ] || refuse "$name has no effect with EVAL_TASKS=0; unset one of them"
        done
    fi
    if [ "$USE_WANDB" = 1 ] && [ -z "${WANDB_KEY:-${WANDB_API_KEY:-}}" ]; then
        refuse "USE_WANDB=1 needs a key: set WANDB_KEY"
    fi
    if [ "$1$EVAL_TASKS" = sft0 ]; then
        ROLLOUT_GPUS=0
    elif [ -n "$SGLANG_URL" ]; then
        [ -z "${given[ROLLOUT_GPUS]:-}" ] || refuse "SGLANG_URL names servers that generate and ROLLOUT_GPUS asks for" \
            "others; unset one of them"
        ROLLOUT_GPUS=0
    elif [ "$SMOKE" = 0 ] && [ "$ROLLOUT_GPUS" -eq 0 ]; then
        refuse "ROLLOUT_GPUS is 0, so that no server can generate; name running ones with SGLANG_URL"
    fi
    [ "$1" = grpo ] || refuse_teacher
}

# refuse_surroundings METHOD: what would only be noticed after minutes.
refuse_surroundings() {
    if [ "$SANDBOX" = bubblewrap ] && ! { [ "$1$EVAL_TASKS" = sft0 ] && is_collected; }; then
        command -v bwrap >/dev/null || refuse "SANDBOX=bubblewrap needs bubblewrap, which is not installed: install it" \
            "(apt install bubblewrap, dnf install bubblewrap), or choose another SANDBOX"
    fi
    [ "$EVAL_TASKS" -eq 0 ] || refuse_evaluation "${HELD_OUT:-$TASKS/held_out.txt}"
    command -v stacx >/dev/null || refuse "the command stacx is not installed, or its environment is not active"
    mkdir -p "$CACHE_ROOT" 2>/dev/null && [ -w "$CACHE_ROOT" ] || refuse "CACHE_ROOT is '$CACHE_ROOT', where nothing" \
        "can be written"
}

# refuse_evaluation FILE: refuses more tasks than the names in the file.
refuse_evaluation() {
    local there=0
    [ ! -f "$1" ] || there=$(grep -cvE '^[[:space:]]*(#|$)' "$1" || true)
    [ "$EVAL_TASKS" -le "$there" ] || refuse "EVAL_TASKS is $EVAL_TASKS, but $1 holds out $there tasks; lower" \
        "EVAL_TASKS, or set it to 0 for no evaluation"
}

refuse_teacher() {
    if [ "$TEACHER" != sglang ] && [ -n "$TEACHER_URL" ]; then
        refuse "TEACHER_URL has servers of TEACHER=sglang, but TEACHER is '$TEACHER'; unset one of them"
    fi
    if [ -n "$TEACHER_URL" ] && [ -n "${given[TEACHER_GPUS]:-}" ] && [ "$TEACHER_GPUS" != 0 ]; then
        refuse "TEACHER_URL names a server and TEACHER_GPUS asks for another one; unset one of them"
    fi
    if [ "$TEACHER" != sglang ] || [ -n "$TEACHER_URL" ] || is_collected; then
        TEACHER_GPUS=0
    fi
    if [ "$TEACHER" = sglang ] && [ -z "$TEACHER_URL" ] && [ "$TEACHER_GPUS" -eq 0 ] && ! is_collected; then
        refuse "TEACHER_GPUS is 0, so that no server can be started; name a running one with TEACHER_URL"
    fi
}

# is_collected: whether the corpus of sft is there, so that no teacher is needed.
is_collected() {
    [ -n "${CORPUS_DIR:-}" ] && [ -f "$CORPUS_DIR/manifest.json" ]
}

# choose_recipe METHOD: sets `recipe`.
choose_recipe() {
    case $1 in
    grpo)
        recipe=(--algorithm grpo)
        if [[ ! $KL_LOSS_COEF =~ ^[0.]*$ ]]; then
            recipe+=(--use-kl-loss --kl-loss-coef "$KL_LOSS_COEF" --ref-load "$BASE_HF")
        fi ;;
    sft) recipe=(--algorithm online_dagger --dagger-sft-mode trajectory --iter-sft-corpus-dir "$CORPUS_DIR") ;;
    opd) recipe=(--algorithm opd) ;;
    dagger)
        recipe=(--algorithm "$RECIPE")
        case $RECIPE in
        online_dagger | mixture_dagger_opd) ;;
        *) refuse "RECIPE is '$RECIPE'; there are online_dagger and mixture_dagger_opd" ;;
        esac ;;
    aggrevate) recipe=(--algorithm mixture_aggrevate_opd) ;;
    esac
}

# choose_tasks METHOD: puts the tasks into `play`, and into `flags` what is played and where it is logged.
choose_tasks() {
    local options="sandbox=$SANDBOX"
    [ -z "$SANDBOXES" ] || options+="&pool=$SANDBOXES"
    [ -z "$HELD_OUT" ] || options+="&held_out=$(encoded "$HELD_OUT")"
    play+=(--environment "harbor:$TASKS?$options")
    if [ "$EVAL_TASKS" -gt 0 ]; then
        flags+=(--eval-tasks "$EVAL_TASKS" "${evaluation[@]}")
        [ "$SKIP_EVAL_BEFORE_TRAIN" = 0 ] || flags+=(--skip-eval-before-train)
    fi
    if [ "$1" != sft ] || [ "$EVAL_TASKS" -gt 0 ]; then
        flags+=("${play[@]}")
    else
        flags+=(--max-sequence-len "$MAX_SEQUENCE_LEN")
    fi
    if [ "$USE_WANDB" = 1 ]; then
        export WANDB_API_KEY=${WANDB_KEY:-$WANDB_API_KEY}
        flags+=(--wandb-mode online --wandb-name "$RUN_TAG")
    fi
}

# encoded TEXT: as the value of an option behind a question mark.
encoded() {
    local text=${1//%/%25}
    text=${text//&/%26}
    echo "${text//+/%2B}"
}

# smoke: one process on a CPU with the embedded engine, and tiny models that are made first.
smoke() {
    engine=(--backend torch --device cpu --rollout-engine local --max-tokens-per-gpu "$MAX_SEQUENCE_LEN")
    model=(--device cpu)
    export PYTHONPATH=$HERE${PYTHONPATH:+:$PYTHONPATH}
    if [ "$BASE_HF" = "$CACHE_ROOT/smoke/student" ] && [ ! -f "$CACHE_ROOT/smoke/teacher/config.json" ]; then
        run python3 "$HERE/smoke_models.py" "$CACHE_ROOT/smoke"
    fi
}

# one_node SIZE: the student on GPUs of its own, servers that generate on others; refuses what does not fit.
one_node() {
    local wanted=$((${TEACHER_GPUS:-0} + ROLLOUT_GPUS + STUDENT_GPUS)) reserved
    local layout=(--tensor-model-parallel-size "$TENSOR_PARALLEL" --max-tokens-per-gpu "$MAX_SEQUENCE_LEN"
        --gradient-checkpointing --num-gpus-per-node "$STUDENT_GPUS")
    [ "$TENSOR_PARALLEL" -eq 1 ] || layout+=(--sequence-parallel)
    # CUDA, the copy of the student that is sent to the servers, and the frozen reference.
    case $1 in 4b) reserved=14 ;; 8b) reserved=25 ;; esac
    find_gpus "$wanted"
    run stacx plan --model "qwen3-$1" --gpu-memory-gb "$GPU_MEMORY_GB" --reserved-memory-gb "$reserved" \
        --sequence-length "$MAX_SEQUENCE_LEN" --global-batch-size "$GLOBAL_BATCH_SIZE" "${layout[@]}"
    engine=(--backend megatron --dtype bf16 "${layout[@]}")
    if [ "$ROLLOUT_GPUS" -gt 0 ]; then
        engine+=(--rollout-engine sglang --sglang-launch "$ROLLOUT_GPUS" --sglang-python "$HERE/on_rollout_gpus.sh"
            --sglang-args "--base-gpu-id {index} --context-length $MAX_SEQUENCE_LEN")
    elif [ -n "$SGLANG_URL" ]; then
        engine+=(--rollout-engine sglang --sglang-url "$SGLANG_URL")
    fi
    model=(--dtype bf16)
    export SGLANG_PYTHON ROLLOUT_DEVICES CUDA_VISIBLE_DEVICES
    ROLLOUT_DEVICES=$(devices "${TEACHER_GPUS:-0}" "$ROLLOUT_GPUS")
    TEACHER_DEVICES=$(devices 0 "${TEACHER_GPUS:-0}")
    CUDA_VISIBLE_DEVICES=$(devices $((wanted - STUDENT_GPUS)) "$STUDENT_GPUS")
}

# find_gpus COUNT: sets `visible` to the GPUs of CUDA_VISIBLE_DEVICES, or of this machine.
find_gpus() {
    local there=$1
    if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
        IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
        there=${#visible[@]}
    else
        if [ "$PRINT$DRY_RUN" = 00 ]; then
            there=$({ nvidia-smi -L 2>/dev/null || true; } | wc -l)
        fi
        mapfile -t visible < <(seq 0 $((there - 1)))
    fi
    [ "$there" -ge "$1" ] || refuse "TEACHER_GPUS, ROLLOUT_GPUS and STUDENT_GPUS are $1 GPUs, but there are $there"
}

# devices FIRST COUNT: that many of the visible GPUs, separated by commas.
devices() {
    local IFS=,
    echo "${visible[*]:$1:$2}"
}

# teach METHOD: adds the teacher to `flags`, or has it play the episodes of the corpus.
teach() {
    local teacher=(--teacher "$TEACHER")
    if is_collected; then
        return
    fi
    if [ "$TEACHER" = sglang ]; then
        if [ -z "$TEACHER_URL" ]; then
            TEACHER_URL=http://127.0.0.1:$TEACHER_PORT
            [ "$DRY_RUN" = 1 ] || start_teacher
        fi
        teacher+=(--teacher-url "$TEACHER_URL")
    elif [ "$TEACHER" != stacx_core.swe.agent.expert:SolutionExpert ]; then
        teacher+=(--teacher-load "$TEACHER_HF")
    fi
    if [ "$1" != sft ]; then
        flags+=("${teacher[@]}")
    elif [ "$DRY_RUN" = 0 ]; then
        run stacx collect --hf-checkpoint "$BASE_HF" "${model[@]}" "${play[@]}" "${teacher[@]}" \
            --num-episodes "$NUM_EPISODES" --episodes-per-shard "$EPISODES_PER_SHARD" --output-dir "$CORPUS_DIR"
    fi
}

# start_teacher: a server on the teacher's GPUs that ends with this process, however that ends.
start_teacher() {
    # It scores texts of up to seven tokens fewer than its context.
    local server=(env CUDA_VISIBLE_DEVICES="$TEACHER_DEVICES" "$SGLANG_PYTHON" -m sglang.launch_server
        --model-path "$TEACHER_HF" --tp-size "$TEACHER_GPUS" --context-length $((MAX_SEQUENCE_LEN + 8))
        --host 127.0.0.1 --port "$TEACHER_PORT") pid
    if [ "$PRINT" = 1 ]; then
        run "${server[@]}"
        return
    fi
    if (: <>"/dev/tcp/127.0.0.1/$TEACHER_PORT") 2>/dev/null; then
        refuse "something listens on port $TEACHER_PORT already, perhaps the server of another run; choose another" \
            "TEACHER_PORT, or name that server with TEACHER_URL"
    fi
    mkdir -p "$RUN"
    setsid "${server[@]}" >"$RUN/teacher.log" 2>&1 &
    pid=$!
    setsid bash -c 'while kill -0 "$1" 2>/dev/null; do sleep 1; done; kill -- "-$2" 2>/dev/null' keeper $$ "$pid" \
        >/dev/null 2>&1 &
    until answers "$TEACHER_URL/health"; do
        kill -0 "$pid" 2>/dev/null || fail "the teacher's server ended: see $RUN/teacher.log"
        sleep 2
    done
}

# answers URL: whether a server answers there.
answers() {
    "$SGLANG_PYTHON" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' "$1" 2>/dev/null
}
