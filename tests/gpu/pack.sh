#!/usr/bin/env bash
# What run.sh needs on a machine with a GPU, but without LuaJIT, cmocka and busted, in FOLDER.tar.gz:
#   cmake -S . -B build/gpu -G Ninja -DMOONSHARD_CUDA=ON -DMOONSHARD_CUDA_ARCHITECTURES=90-real
#   cmake --build build/gpu && tests/gpu/pack.sh build/gpu build/gpu-pack
# There, in the root of a copy of the repository:
#   tar -C build -xzf build/gpu-pack.tar.gz && tests/gpu/run.sh build/gpu-pack
# The CUDA libraries are those of that machine.
set -euo pipefail
build=$1 folder=$2
. "$(dirname "${BASH_SOURCE[0]}")/programs.sh"

rm -rf "$folder"
mkdir -p "$folder"/{bin,lib,tests,lua}
cp -r "$build/generated" "$folder/generated"
cp -L "$build"/libmoonshard.so.0 "$build"/libmoonshard_*.so "$build"/moonshard_lua.so "$folder"
ln -s libmoonshard.so.0 "$folder/libmoonshard.so"
rm -f "$folder/libmoonshard_onednn.so" # 40 MB; the own products of the CPU do here
for program in "${programs[@]}"; do
  strip -o "$folder/tests/$program" "$build/tests/$program"
done
cp -L "$(command -v luajit)" "$folder/bin/luajit"
cp -rL /usr/share/lua/5.1/. /usr/lib/x86_64-linux-gnu/lua/5.1/. "$folder/lua" # -L: modules in C are links
printf "%s\n" "require 'busted.runner' { standalone = false }" >"$folder/bin/busted.lua"
ldd "$folder/bin/luajit" "$folder"/tests/* "$folder"/lib*.so "$folder"/moonshard_lua.so |
  sed -nE 's/^\t(lib(luajit|cmocka|jansson|xxhash)[^ ]*) => ([^ ]+).*/\3/p' | sort -u | xargs cp -Lt "$folder/lib"
tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"
glibc=$({ find "$folder" -type f -exec objdump -T {} + 2>/dev/null || true; } | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -n 1)
echo "$(du -h "$folder.tar.gz"), needs ${glibc/_/ }"
