#!/bin/sh
# bin/luajit and bin/moonshard of a bundle: run the bundled program with paths relative to this file.
self=$0
case $self in
  */*) ;;
  *) self=./$self ;; # sh luajit
esac
while [ -L "$self" ]; do
  link=$(readlink "$self")
  case $link in
    /*) self=$link ;;
    *) self=${self%/*}/$link ;;
  esac
done
root=$(cd "${self%/*}/.." && pwd -P) || exit 1
case $root in
  *[\;?]*)
    echo "${self##*/}: the bundle is in '$root'; Lua cannot load from a path with ; or ?" >&2
    exit 1 ;;
esac
# An empty entry at the end is Lua's own path.
export LUA_PATH="$root/share/lua/5.1/?.lua;$root/share/lua/5.1/?/init.lua;$root/share/luajit/?.lua;${LUA_PATH:-;}"
export LUA_CPATH="$root/lib/lua/5.1/?.so;${LUA_CPATH:-;}"
case ${self##*/} in
  moonshard) exec "$root/libexec/luajit" "$root/libexec/moonshard" "$@" ;;
  *) exec "$root/libexec/luajit" "$@" ;;
esac
