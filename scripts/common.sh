# common.sh: what every script here begins with: the root of the tree, how to say what goes on, how to build.
# Sourced by bash, never run. It leaves the working directory at the root of the tree.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
script=${0##*/}
cd -- "$root" || exit

say()
{
   printf '%s: %s\n' "$script" "$*"
}

die()
{
   printf '%s: %s\n' "$script" "$*" >&2
   exit 1
}

# The comment block at the top of the calling script, below its first line, is its help text.
print_help()
{
   awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "${BASH_SOURCE[1]}"
}

# marked_commands FILE: the lines of its blocks that follow a line "<!-- command -->".
marked_commands()
{
   awk '
      /^<!-- command -->$/ { marked = 1; next }
      marked && /^```/ { if (inside) { inside = marked = 0 } else inside = 1; next }
      inside' "$1"
}

want()
{
   command -v "$1" >/dev/null 2>&1 || die "$1 is not installed; run scripts/setup"
}

cores()
{
   getconf _NPROCESSORS_ONLN
}

# wheel NAME: the path of a library of the PyTorch that is installed here, as a serving host would have it in its process; or nothing.
wheel()
{
   python3 -c '
import glob, site, sys
for folder in site.getsitepackages() + [site.getusersitepackages()]:
    for path in sorted(glob.glob(folder + "/nvidia/*/lib/" + sys.argv[1])):
        print(path)
        sys.exit()' "$1" 2>/dev/null || true
}

# build_tree DIRECTORY [cmake option ...] [-- target ...]: configures and builds; the whole output only when that fails.
build_tree()
{
   local directory=$1 log status=0
   shift
   local -a options=() targets=()
   while (($# > 0)); do
      if [[ $1 == -- ]]; then
         shift
         targets=(--target "$@")
         break
      fi
      options+=("$1")
      shift
   done
   mkdir -p "$directory"
   log=$directory/build.log
   local started=$SECONDS
   {
      cmake -S . -B "$directory" "${options[@]}" && cmake --build "$directory" -j "$(cores)" "${targets[@]}"
   } >"$log" 2>&1 || status=$?
   if ((status != 0)); then
      cat "$log" >&2
      die "building in $directory failed (log: $directory/build.log)"
   fi
   # What CMake says of the plugin is only true where all is built.
   [[ ${targets[1]-all} != all ]] || grep -E '^-- sluice: ' "$log" | sed "s/^-- sluice: /$script: /" || true
   say "built $directory in $((SECONDS - started)) s"
}

# Whether a program with libFuzzer and the sanitizers can be linked here.
can_fuzz()
{
   command -v clang >/dev/null 2>&1 || return 1
   printf '%s\n' '#include <stddef.h>' '#include <stdint.h>' \
      'int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n) { return d == NULL && n > 0; }' |
      clang -x c -fsanitize=fuzzer,address,undefined -o /dev/null - >/dev/null 2>&1
}
