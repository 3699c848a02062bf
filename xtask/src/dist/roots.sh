# Runs in a fresh root of Debian: install, use, upgrade, remove, purge. $1 and $2 are two versions of the
# package, $3 is one that has the other program's name, $4 is the newer version, $5 the tarball.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# All files except what dpkg itself writes down.
listing() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /var/lib/dpkg -o -path /try \) -prune -o \
        ! -path /var/log/dpkg.log -printf '%p %y %m\n' | sort
}

# A traffic program starts here if it says how to call it: this one does without arguments.
started() {
    "$1" >/try/usage 2>&1 || grep -q usage /try/usage
}

listing >/try/before
dpkg --install "$1" >/dev/null
installed=$(dpkg-query --listfiles rdmatop-bpf)
[ "$(dpkg-query --showformat '${Status}' --show rdmatop-bpf)" = "install ok installed" ]
rdmatop --version
rdmatop doctor --json >/dev/null || [ $? -le 3 ]
for file in $installed; do
    [ -e "$file" ] || { echo "$file is not installed"; exit 1; }
done
started /usr/lib/rdmatop/disk
[ -e /usr/lib/systemd/system/rdmatop-check.timer ]
if find /etc/systemd -name 'rdmatop*' 2>/dev/null | grep .; then
    echo "a unit was enabled"
    exit 1
fi
for command in check doctor lab nccl-log probes; do
    gzip --test "/usr/share/man/man1/rdmatop-$command.1.gz"
done
# The program in a root of its own that has the libraries of glibc's package and no other file.
alone=/try/alone
mkdir -p $alone/lib
cp /usr/bin/rdmatop $alone/
dpkg --listfiles libc6 | grep '\.so\.[0-9]*$' | while read -r file; do
    [ -d "$file" ] || cp --dereference "$file" $alone/lib/
done
# The kernel takes the loader from the path in the program.
loader=$(ldd /usr/bin/rdmatop | sed -n 's|^[^/]*\(/[^ ]*/ld-[^ ]*\) .*|\1|p')
mkdir -p "$alone$(dirname "$loader")"
[ -e "$alone$loader" ] || cp --dereference "$loader" "$alone$loader"
[ "$(chroot $alone /rdmatop --version)" = "$(rdmatop --version)" ]
chroot $alone /rdmatop doctor --json >/dev/null || [ $? -le 3 ]
if dpkg --install "$3" >/try/conflict 2>&1; then
    echo "the other program's package was installed beside this one"
    exit 1
fi
grep -q conflict /try/conflict
dpkg --install "$2" >/dev/null
[ "$(dpkg-query --showformat '${Version}' --show rdmatop-bpf)" = "$4" ]
dpkg --remove rdmatop-bpf >/dev/null
if [ -e /usr/bin/rdmatop ]; then
    echo "/usr/bin/rdmatop was not removed"
    exit 1
fi
dpkg --purge rdmatop-bpf >/dev/null 2>&1
listing >/try/after
diff /try/before /try/after

# The tarball, by its script.
mkdir /try/tar
tar --extract --file "$5" --directory /try/tar --strip-components=1
/try/tar/install.sh >/dev/null
/usr/local/bin/rdmatop --version
started /usr/local/lib/rdmatop/disk
/try/tar/install.sh --uninstall >/dev/null
listing >/try/after
diff /try/before /try/after
