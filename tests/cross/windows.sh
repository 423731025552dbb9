#!/usr/bin/env bash
# windows.sh BUILD: kvevict.dll and the managed packages' DLLs need only the
# system's DLLs, may lie anywhere, can be loaded, and offer what they should. A
# program made by Microsoft's rules with kvevict.lib runs.
set -euo pipefail
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
build=$(realpath "$1")
export LC_ALL=C
dump=x86_64-w64-mingw32-objdump
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for file in "$build"/kvevict.dll "$build"/tools/kvevict.exe "$build"/natives/*/*/*.dll; do
  [[ -e $file ]] || continue
  headers=$($dump -p "$file")
  needed=$(sed -n 's/.*DLL Name: //p' <<<"$headers" | sort -fu)
  others=$(grep -vixE 'kernel32.dll|advapi32.dll|shell32.dll|msvcrt.dll|kvevict.dll' \
    <<<"$needed" || true)
  [[ -z $others ]] || { echo "$file needs $others" && exit 1; }
  for flag in HIGH_ENTROPY_VA DYNAMIC_BASE NX_COMPAT; do
    grep -q "$flag" <<<"$headers" || { echo "$file: no $flag" && exit 1; }
  done
  echo "${file#"$build"/} needs" $needed
done

offered() { # offered DLL
  $dump -p "$1" | sed -n '/\[Ordinal\/Name Pointer\]/,/^$/p' |
    sed -n '1d; s/.*\] \(.*\)$/\1/p' | sort
}
diff <(sed 's/@.*//' "$source/pkg/abi/kvevict.symbols") <(offered "$build/kvevict.dll") &&
  echo "kvevict.dll offers what it should"
cat >"$work/load.c" <<'C'
#include <stdio.h>
#include <windows.h>
int main(int argc, char** argv) {
  HMODULE dll = LoadLibraryA(argv[1]);
  const char* (*version)(void) =
      argc < 3 ? NULL : (void*)GetProcAddress(dll, argv[2]);
  printf("%s %s\n", dll ? "loaded" : "not loaded", version ? version() : "");
  return dll ? 0 : 1;
}
C
x86_64-w64-mingw32-gcc-posix -static -o "$work/load.exe" "$work/load.c"
# managed DLL PATTERN [FUNCTION]
managed() {
  local dll=$build/natives/$1 others
  [[ -e $dll ]] || { echo "skipped: no $1 is built" && return; }
  others=$(offered "$dll" | grep -Ev "^($2)$" || true)
  [[ -z $others ]] || { echo "$1 offers $others" && exit 1; }
  echo "$1: $(WINEDEBUG=-all wine "$work/load.exe" "Z:${dll//\//\\}" ${3:+"$3"} | tr -d '\r')"
}
managed csharp/win-x64/kvevict_csharp.dll 'CSharp_KvEvict_kvevict_[a-z0-9_]+' \
  CSharp_KvEvict_kvevict_version
managed java/windows-x86_64/kvevict_java.dll \
  'JNI_On(L|Unl)oad|Java_dev_kvevict_Native[A-Za-z]*_[A-Za-z0-9_]+'

if ! command -v lld-link >/dev/null || ! command -v clang >/dev/null; then
  echo "skipped: no clang and lld-link for a program by Microsoft's rules"
  exit 0
fi
cd "$work"
cat >main.c <<'C'
#include <kvevict/kvevict.h>
__declspec(dllimport) void ExitProcess(unsigned);
int _fltused;
void start(void) {
  kvevict_context* context = 0;
  const kvevict_status status = kvevict_context_create(0, &context);
  kvevict_context_destroy(context);
  const char* const version = kvevict_version();
  ExitProcess(status == KVEVICT_OK && version[0] == '0' && version[1] == '.' ? 0 : 1);
}
C
printf 'LIBRARY KERNEL32.dll\nEXPORTS\nExitProcess\n' >kernel32.def
llvm-dlltool -m i386:x86-64 -d kernel32.def -l kernel32.lib
clang --target=x86_64-pc-windows-msvc -ffreestanding -std=c11 -Wall -Wextra -Werror \
  -I"$source/capi/include" -O1 -c main.c -o main.obj
lld-link /nologo /subsystem:console /entry:start /nodefaultlib /out:main.exe main.obj \
  "$build/kvevict.lib" kernel32.lib
cp "$build/kvevict.dll" .
WINEDEBUG=-all wine main.exe && echo "a program by Microsoft's rules runs"
