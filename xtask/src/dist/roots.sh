# Runs in a fresh root of Debian: install, use, upgrade, remove, purge. $1 and $2 are two versions of the
# package, $3 is one that has the other program's name, $4 is the newer version, $5 the tarball. Nobody else
# sees its mounts.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# All files except what dpkg itself writes down, with the targets of links, and the sizes and content of
# files.
listing() {
    files="$(printf '%s ' -path /proc -o -path /sys -o -path /dev -o -path /var/lib/dpkg -o -path /try)"
    {
        find / -xdev \( $files \) -prune -o -path /var/log/dpkg.log -o \
            \( -type f -printf '%p %y %m %s\n' -o -printf '%p %y %m %l\n' \)
        find / -xdev \( $files \) -prune -o -path /var/log/dpkg.log -o -type f -exec sha256sum {} +
    } | sort
}

# The traffic programs below the prefix $1: all are there, those that need no libibverbs start here, as they do
# if they refuse an option, and `lab run` finds those of each scenario.
traffic() {
    for program in disk misuse pingpong ring-allreduce stream tcp-fallback; do
        [ -x "$1/lib/rdmatop/$program" ] || { echo "no traffic program $program"; exit 1; }
    done
    for program in disk tcp-fallback; do
        "$1/lib/rdmatop/$program" -h >/try/usage 2>&1 || grep -q 'invalid option' /try/usage
    done
    # A file in the place of its directory keeps `lab run` from making devices on the machine that this root
    # lies on. It looks for the programs before that, beside its own, whose path it has from /proc.
    : >/run/rdmatop
    mount -t proc proc /proc
    for scenario in $("$1/bin/rdmatop" lab run --list | sed 's/ .*//'); do
        if "$1/bin/rdmatop" lab run "$scenario" --for 1 >/try/lab 2>&1; then
            echo "lab run $scenario ran, though it cannot note its devices"
            exit 1
        fi
        grep -q /run/rdmatop /try/lab || { cat /try/lab; exit 1; }
    done
    umount /proc
    # Where mount(8) keeps notes.
    rm -rf /run/rdmatop /run/mount
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
traffic /usr
[ -e /usr/lib/systemd/system/rdmatop-check.timer ]
if find /etc/systemd -name 'rdmatop*' 2>/dev/null | grep .; then
    echo "a unit was enabled"
    exit 1
fi
for page in "" -check -doctor -lab -lab-down -lab-run -lab-status -lab-up -nccl-log -probes; do
    gzip --test "/usr/share/man/man1/rdmatop$page.1.gz"
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
# As `systemctl enable` does, which this root lacks.
wants=/etc/systemd/system/timers.target.wants
mkdir -p $wants
ln -s /lib/systemd/system/rdmatop-check.timer $wants/
dpkg --install "$2" >/dev/null
[ -h $wants/rdmatop-check.timer ] || { echo "an upgrade disabled a unit"; exit 1; }
[ "$(dpkg-query --showformat '${Version}' --show rdmatop-bpf)" = "$4" ]
dpkg --remove rdmatop-bpf >/dev/null
if [ -e /usr/bin/rdmatop ]; then
    echo "/usr/bin/rdmatop was not removed"
    exit 1
fi
dpkg --purge rdmatop-bpf >/dev/null 2>&1
listing >/try/after
diff /try/before /try/after

# The tarball, by its script: an older version, with a file that is no more and without one that is new, then
# this one in its place.
mkdir /try/tar
tar --extract --file "$5" --directory /try/tar --strip-components=1
cp -r /try/tar /try/older
echo older >/try/older/bin/rdmatop
echo older >/try/older/lib/rdmatop/older
rm /try/older/share/man/man1/rdmatop-lab-run.1.gz
/try/older/install.sh >/dev/null
[ -e /usr/local/lib/rdmatop/older ]
/try/tar/install.sh >/dev/null
if [ -e /usr/local/lib/rdmatop/older ]; then
    echo "a file of the older version stayed"
    exit 1
fi
for part in bin lib share; do
    (cd /try/tar && find $part -type f) | while read -r file; do
        cmp "/try/tar/$file" "/usr/local/$file"
    done
done
/usr/local/bin/rdmatop --version
traffic /usr/local
/try/tar/install.sh --uninstall >/dev/null
listing >/try/after
diff /try/before /try/after
