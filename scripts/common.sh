# common.sh: what every script here begins with: the root of the tree, how to say what goes on, how to build.
# Sourced by bash, never run. It leaves the working directory at the root of the tree.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
script=${0##*/}
script_file=$(cd -- "$(dirname -- "$0")" && pwd)/$script
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
   awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$script_file"
}

# take_arguments KEPT PASSED FLAGS ARGUMENT ...: the first three are lists of names. `given` gets the values of options that are kept, by
# name, `arguments` those that are passed on with their names, and flags, which have no value. Anything else ends the script with 2.
declare -A given=()
arguments=()
take_arguments()
{
   local kept=" $1 " passed=" $2 " flags=" $3 "
   shift 3
   while (($# > 0)); do
      if [[ $1 == -h || $1 == --help ]]; then
         print_help
         exit 0
      elif [[ $1 == '' || $1 == *' '* ]]; then # no name of the lists
         say "unknown argument '$1'; scripts/$script --help tells" >&2
         exit 2
      elif [[ $flags == *" $1 "* ]]; then
         arguments+=("$1")
         shift
         continue
      elif [[ $kept$passed != *" $1 "* ]]; then
         say "unknown argument $1; scripts/$script --help tells" >&2
         exit 2
      elif (($# == 1)); then
         say "$1 wants a value; scripts/$script --help tells" >&2
         exit 2
      elif [[ $kept == *" $1 "* ]]; then
         given[$1]=$2
      else
         arguments+=("$1" "$2")
      fi
      shift 2
   done
}

# take_directory DEFAULT ARGUMENT ...: sets `directory` to the one argument of a script that fetches, or to DEFAULT.
take_directory()
{
   directory=$1
   shift
   local argument
   for argument in "$@"; do
      case $argument in
         -h | --help)
            print_help
            exit 0
            ;;
         -*) die "unknown argument $argument; scripts/$script --help tells" ;;
         '') die "the directory has an empty name" ;;
      esac
   done
   (($# <= 1)) || die "one directory at most ($# arguments)"
   directory=${1:-$directory}
}

# quietly WHAT COMMAND ARGUMENT ...: what the command says is shown only where it fails, and only its end; the script then dies of WHAT.
# A function fails with the first of its commands that does.
quietly()
{
   local what=$1 said status
   shift
   set +e
   said=$(
      set -e
      "$@" 2>&1
   )
   status=$?
   set -e
   ((status != 0)) || return 0
   tail -n 20 <<<"$said" >&2
   die "$what"
}

# nothing_can_be DONE WHY: ends the script with 3.
nothing_can_be()
{
   say "nothing can be $1: $2" >&2
   exit 3
}

# want_gpus DONE: where there is no GPU nothing can be DONE, and the script ends. What asks the driver is LuaJIT, which is installed where it is missing.
want_gpus()
{
   local why
   command -v luajit >/dev/null 2>&1 || scripts/setup --test >&2
   why=$(luajit scripts/gpus.lua) || nothing_can_be "$1" "$why"
}

# build_for_gpus PROGRAM [DONE]: sets `build` to the folder --build names, or to one that is built now, and ends the script with 3 where
# PROGRAM cannot be made here, or there is no GPU; nothing is built before that is known. What is built goes with kernels that only
# measuring wants.
build_for_gpus()
{
   local what=${2-measured} why
   build=${given[--build]-}
   if [[ -z $build ]]; then
      build="build-gpu"
      want_gpus "$what"
      scripts/setup --test >&2
      why=$(cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release | sed -n 's/^-- sluice: libsluice_cuda is not built: //p')
      [[ -z $why ]] || nothing_can_be "$what" "libsluice_cuda cannot be built: $why"
      build_tree "$build" -- all >&2
      if [[ $1 != gpu_check ]]; then
         cmake --build "$build" --target gpu_bench_kernels >>"$build"/build.log 2>&1 || say "the kernels are not built: see $build/build.log" >&2
      fi
   fi
   if [[ ! -x $build/$1 || ! -f $build/libsluice_cuda.so ]]; then
      nothing_can_be "$what" "$build has no $1 and libsluice_cuda.so, which are built where nvcc and nccl.h are found"
   fi
   want_gpus "$what"
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
