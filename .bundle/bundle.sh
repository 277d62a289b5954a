#!/usr/bin/env bash
# bundle.sh BUILD FOLDER: FOLDER/moonshard-<version>-linux-x86_64.tar.gz from a build. It holds the
# library, its plug-ins, luajit and the shared libraries that they need, except those of glibc and of
# the GPU driver, which the target machine has. ELF files find each other by RUNPATHs relative to
# themselves.
set -euo pipefail
build=$1
folder=$2
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
name=moonshard-$version-linux-x86_64
newest_glibc=2.36 # Debian 12

glibc='^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|mvec|thread_db))\.so'
driver='^lib(cuda|nvidia-.*|uc[mpst])\.so' # and UCX, which opens the transports of its own package

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/$name
echo '/none' >"$work/unmodified" # names of files that are only copied

fail() {
  echo "bundle: $*" >&2
  exit 1
}

elf_files() { # the programs and libraries in the bundle
  find "$root/lib" "$root/libexec" -type f \( -name '*.so*' -o -name luajit \)
}

our_elf_files() { # without those that must stay as their vendor made them
  elf_files | grep -vF -f "$work/unmodified"
}

needed_by() { # needed_by FILE: lines of "soname path", or "soname not found"; also what it opens at run time
  local cublas
  ldd "$1" | sed -nE 's/^\t([^ ]+) => (not found|[^ ]+).*/\1 \2/p'
  if [ "${1##*/}" = libmoonshard_cuda.so ]; then
    cublas=$(sed -n 's/^CUDA_cublasLt_LIBRARY:FILEPATH=//p' "$build/CMakeCache.txt")
    echo "$(readelf -d "$cublas" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p') $cublas"
  fi
}

package_of() { # package_of FILE: the Debian package that installed it
  local path
  for path in "$1" "/usr$1" "${1#/usr}"; do
    dpkg-query -S "$path" 2>/dev/null | sed 's/:.*//' && return 0
  done
  return 1
}

# licenses_near FILE: of a library without a Debian package: of the Python package whose RECORD lists
# it, else the licence files in the folders above it, as in a CUDA toolkit.
licenses_near() {
  local above record
  for above in "${1%/*}" "${1%/*}/.." "${1%/*}/../.." "${1%/*}/../../.."; do
    record=$(grep -lE "(^|/)${1##*/}," "$above"/*.dist-info/RECORD "$above"/dist-info/*/RECORD 2>/dev/null | head -n 1 || true)
    if [ -n "$record" ]; then
      find "${record%/*}/" -type f \( -iname '*license*' -o -iname '*eula*' \)
    else
      find "$above/" -maxdepth 1 -type f \( -iname '*license*' -o -iname '*eula*' \)
    fi | grep . && return 0
  done
  return 1
}

# add_license FILE: of its Debian package, with the common licences that it refers to, or of the
# vendor, whose file stays unmodified.
add_license() {
  local file package common licenses license
  file=$(readlink -f "$1")
  if package=$(package_of "$file"); then
    cp "/usr/share/doc/$package/copyright" "$root/LICENSES/$package"
    for common in $(grep -oE '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$root/LICENSES/$package" | sort -u); do
      [ ! -e "$common" ] || cp -L "$common" "$root/LICENSES/"
    done
    return 0
  fi
  licenses=$(licenses_near "$file") || fail "no licence found for $file"
  while read -r license; do
    cp "$license" "$root/LICENSES/${file##*/}-${license##*/}"
  done <<<"$licenses"
  echo "${1##*/}" >>"$work/unmodified"
}

add_libraries() { # all that the ELF files need; ldd lists indirect dependencies too
  local file soname path
  while read -r file; do
    while read -r soname path; do
      if [[ $soname =~ $glibc || $soname =~ $driver || -e $root/lib/$soname ]]; then
        continue
      fi
      [ "$path" != 'not found' ] || fail "$soname is missing, which ${file##*/} needs"
      cp -L "$path" "$root/lib/$soname"
      chmod 755 "$root/lib/$soname"
      add_license "$path"
    done < <(needed_by "$file")
  done < <(elf_files)
}

# luajit's is an RPATH, which also serves what its libraries load: an unmodified one may have no path.
set_runpaths() {
  local file
  while read -r file; do
    case $file in
      */libexec/*) patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$file" ;;
      */lua/5.1/*) patchelf --set-rpath "\$ORIGIN/../.." "$file" ;;
      *) patchelf --set-rpath "\$ORIGIN" "$file" ;;
    esac
  done < <(our_elf_files)
}

check_libraries() { # each one is in the bundle, or is glibc's or the driver's
  local file soname
  while read -r file; do
    while read -r soname; do
      if [[ ! $soname =~ $glibc && ! $soname =~ $driver && ! -e $root/lib/$soname ]]; then
        fail "${file##*/} needs $soname, expected it in the bundle"
      fi
    done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  done < <(elf_files)
}

glibc_needed() { # the newest version of its symbols
  elf_files | xargs objdump -T 2>/dev/null | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1 | cut -d_ -f2
}

cmake --install "$build" --prefix "$root" >/dev/null
mkdir -p "$root/libexec" "$root/share/luajit" "$root/LICENSES"
mv "$root/bin/moonshard" "$root/libexec/moonshard"
install -m 755 "$source/.bundle/start.sh" "$root/bin/moonshard"
install -m 755 "$source/.bundle/start.sh" "$root/bin/luajit"
cp -r "$source/examples" "$root/examples"
cp "$source/LICENSE" "$root/LICENSES/moonshard"

luajit=$(command -v luajit)
cp -L "$luajit" "$root/libexec/luajit"
add_license "$luajit"
jit=$(luajit -e "print((assert(package.searchpath('jit.v', package.path)):gsub('/v%.lua$', '')))")
cp -r "$jit" "$root/share/luajit/jit"

for soname in libpcre2-8.so.0 libutf8proc.so.2; do # opened by tokenizers, needed by no ELF file
  path=$("${CC:-cc}" -print-file-name="$soname")
  [ -e "$path" ] || fail "$soname is missing, which tokenizers need"
  cp -L "$path" "$root/lib/$soname"
  chmod 755 "$root/lib/$soname"
  add_license "$path"
done
add_libraries
our_elf_files | xargs strip --strip-unneeded
set_runpaths
check_libraries
needs=$(glibc_needed)
[ "$(printf '%s\n' "$needs" "$newest_glibc" | sort -V | tail -n 1)" = "$newest_glibc" ] ||
  echo "bundle: it needs glibc $needs; to run on Debian 12 ($newest_glibc), build it there" >&2

log=$work/doctor
env -i PATH=/nonexistent "$root/bin/moonshard" doctor >"$log" 2>&1 || {
  cat "$log" >&2
  fail 'moonshard doctor fails in it'
}

mkdir -p "$folder"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -n >"$work/tar.gz"
mv "$work/tar.gz" "$folder/$name.tar.gz"
echo "$folder/$name.tar.gz: $(du -h --apparent-size "$folder/$name.tar.gz" | cut -f1), unpacked $(du -sh --apparent-size "$root" | cut -f1), needs glibc $needs"
(cd "$root/lib" && find . -type f -name '*.so*' -printf '  %P %kK\n' | sort)
