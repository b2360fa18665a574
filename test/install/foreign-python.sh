#!/bin/sh
# foreign-python.sh ARCHITECTURE FOLDER - this Debian's Python for another architecture, unpacked into a folder, for qemu. Prints
# the interpreter's path. Nothing of the system changes: apt gets a list of packages of its own (10 s, 14 MB).
set -eu
architecture=$1 root=$2
release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
mkdir -p "$root/apt/lists/partial" "$root/apt/cache/archives/partial"
echo "deb http://deb.debian.org/debian $release main" >"$root/apt/sources.list"
cd "$root/apt"
set -- -qq -o Dir::State="$PWD" -o Dir::State::status=/dev/null -o Dir::Cache="$PWD/cache" -o Dir::Etc::SourceList="$PWD/sources.list" \
    -o Dir::Etc::SourceParts=/dev/null -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o APT::Sandbox::User=root
apt-get "$@" update >&2
name=$(apt-cache "$@" depends python3-minimal | sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal$/\1/p' | head -1)
apt-get "$@" download "$name-minimal" "lib$name-minimal" "lib$name-stdlib" libffi8 libexpat1 zlib1g >&2
for package in *.deb; do dpkg -x "$package" "$root"; done
echo "$root/usr/bin/$name"
