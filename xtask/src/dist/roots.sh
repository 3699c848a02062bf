# Runs in a fresh root of Debian: install, use, upgrade, remove, purge. $1 and $2 are two versions of the
# package, $3 is one that has the other program's name.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# All files but what dpkg itself writes down.
listing() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /var/lib/dpkg -o -path /try \) -prune -o \
        ! -path /var/log/dpkg.log -printf '%p %y %m\n' | sort
}

listing >/try/before
dpkg --install "$1" >/dev/null
installed=$(dpkg-query --listfiles rdmatop-bpf)
[ "$(dpkg-query --showformat '${Status}' --show rdmatop-bpf)" = "install ok installed" ]
rdmatop --version
rdmatop doctor --json >/dev/null || [ $? -le 2 ]
for file in $installed; do
    [ -e "$file" ] || { echo "$file is not installed"; exit 1; }
done
for command in check doctor lab nccl-log probes; do
    gzip --test "/usr/share/man/man1/rdmatop-$command.1.gz"
done
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
