# Installs, uses, upgrades and removes the RPM package in a root of Debian, by the rpm of this machine. $1 is
# the root, perhaps of another machine, $2 and $3 are two versions of the package, $4 is the newer version.
set -eu
export LC_ALL=C
root=$1
try=$root/try/rpm
mkdir -p "$try"
# The database lies in a directory that the listing leaves out.
in_root() {
    rpm --root "$root" --dbpath /try/rpm/db "$@"
}

# All files, with the targets of links, and the sizes and content of files.
listing() {
    (
        cd "$root"
        find . -xdev -path ./try -prune -o \( -type f -printf '%p %y %m %s\n' -o -printf '%p %y %m %l\n' \)
        find . -xdev -path ./try -prune -o -type f -exec sha256sum {} +
    ) | sort
}

# Builds an empty package whose spec has the lines of stdin, too.
empty() {
    {
        printf 'Name: %s\nVersion: 1\nRelease: 1\nSummary: A test\nLicense: MIT\nBuildArch: noarch\n' "$1"
        cat
        printf '%%description\nA test.\n%%files\n'
    } >"$try/$1.spec"
    rpmbuild --quiet -bb --define "_topdir $try" --define "_rpmdir $try" --define '_build_name_fmt %%{NAME}.rpm' "$try/$1.spec" >&2
}

listing >"$try/before"
cp "$2" "$try/this.rpm"
cp "$3" "$try/next.rpm"
if in_root --install --ignorearch "$try/this.rpm" 2>"$try/refused"; then
    echo "installed, though this root's database has no C library"
    exit 1
fi
grep -q 'libc.so.6(GLIBC_2.28)' "$try/refused"
# rpm does not know Debian's files. This package provides what rpm's own reader finds in the C library of the
# root, and nothing else.
for library in libc.so.6 libdl.so.2 libm.so.6 libpthread.so.0; do
    find -L "$root/lib" -name $library | head -1
done | /usr/lib/rpm/elfdeps --provides | sort -u | sed 's/^/Provides: /' >"$try/provides"
# The shell of the script that runs when the package goes.
echo 'Provides: /bin/sh' | cat - "$try/provides" | empty glibc-of-the-root
in_root --install --ignorearch "$try/glibc-of-the-root.rpm"
in_root --install --ignorearch "$try/this.rpm"
in_root --verify rdmatop-bpf
in_root --query --list rdmatop-bpf | while read -r file; do
    [ -e "$root$file" ] || { echo "$file is not installed"; exit 1; }
done
chroot "$root" rdmatop --version
chroot "$root" rdmatop doctor --json >/dev/null || [ $? -le 3 ]
empty rdmatop </dev/null
if in_root --install --ignorearch "$try/rdmatop.rpm" 2>"$try/refused"; then
    echo "the other program's package was installed beside this one"
    exit 1
fi
grep -q 'conflicts with' "$try/refused"
in_root --upgrade --ignorearch "$try/next.rpm"
[ "$(in_root --query --queryformat '%{VERSION}' rdmatop-bpf)" = "$4" ]
in_root --verify rdmatop-bpf
# This root has no systemctl: one that writes down what it is asked. An upgrade asks nothing.
printf '#!/bin/sh\necho "$*" >>/try/rpm/asked\n' >"$root/usr/bin/systemctl"
chmod 755 "$root/usr/bin/systemctl"
in_root --upgrade --oldpackage --ignorearch "$try/this.rpm"
[ ! -e "$try/asked" ]
in_root --erase rdmatop-bpf
for unit in check.service check.timer lab.service; do
    grep -q "disable .*rdmatop-$unit" "$try/asked"
done
rm "$root/usr/bin/systemctl"
in_root --erase glibc-of-the-root
listing >"$try/after"
diff "$try/before" "$try/after"
