# Sourced by the other scripts.

# run COMMAND...: runs it, or prints it with PRINT=1.
run() {
    if [ "${PRINT:-}" = 1 ]; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}
