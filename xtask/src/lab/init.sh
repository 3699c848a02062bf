#!/bin/busybox sh
# The lab guest's first process, in an initramfs of busybox and a few modules. It lays a writable overlay
# over the host's root (read-only, 9p), or over that of a guest for another machine, makes SoftRoCE devices, runs the job there and reports by virtio port:
#   lab.ctl  out: "ready SECONDS", "exit CODE", "fail REASON"; in: "size ROWS COLS"; its end means power off
#   lab.out, lab.err  the job's stdout and stderr, each closed by the marker in /job/conf
/bin/busybox mkdir -p /sys /proc /dev /host /files /job /rw /pre /new
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
exec </dev/null >/dev/console 2>&1

for module in $(cat /modules.list); do
    insmod "/modules/$module" || echo "lab: insmod $module failed"
done

port() {
    for dir in /sys/class/virtio-ports/*; do
        [ "$(cat "$dir/name" 2>/dev/null)" = "$1" ] && echo "/dev/${dir##*/}" && return
    done
}
tries=0
while [ -z "$(port lab.ctl)" ] && [ $tries -lt 100 ]; do
    tries=$((tries + 1))
    usleep 50000
done
ctl=$(port lab.ctl)
if [ -z "$ctl" ]; then
    echo "lab: no control port"
    poweroff -f
fi
exec 5<>"$ctl"
fail() {
    echo "fail $*" >&5
    echo "lab: $*"
    sleep 2
    poweroff -f
}

nine=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,$nine,cache=loose" host /host || fail "cannot mount the host's root"
mount -t 9p -o "$nine" job /job || fail "cannot mount the job share"
. /job/conf
if [ "$LAB_FOREIGN" = 1 ]; then
    mount -t 9p -o "ro,$nine,cache=loose" files /files || fail "cannot mount the host's files"
fi

mount -t tmpfs -o size=80%,mode=755 rw /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "cannot lay the overlay"
# A second view of the overlay: what the mounts below cover stays reachable for the binds.
mount -o bind /new /pre
mount -t tmpfs -o mode=1777 tmp /new/tmp
mount -t tmpfs -o mode=755 run /new/run
mkdir -p /new/run/lock /new/run/lab /new/run/user
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs devtmpfs /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /new/dev/pts
mount -t tmpfs -o mode=1777 shm /new/dev/shm
ln -sfn /proc/self/fd /new/dev/fd
ln -sfn /proc/self/fd/0 /new/dev/stdin
ln -sfn /proc/self/fd/1 /new/dev/stdout
ln -sfn /proc/self/fd/2 /new/dev/stderr
mount -t tracefs tracefs /new/sys/kernel/tracing
mount -t debugfs debugfs /new/sys/kernel/debug
mount -t securityfs securityfs /new/sys/kernel/security
mount -t bpf bpf /new/sys/fs/bpf
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup

# A root for another machine has none of the directories that the job needs: each is laid there, writable as the
# root is. In an overlay's options a path may have no colon, so each gets another name first.
kept=0
lay() {
    kept=$((kept + 1))
    mkdir -p "/new$1" "/rw/kept$kept/lower" "/rw/kept$kept/upper" "/rw/kept$kept/work"
    mount -o bind "/files$1" "/rw/kept$kept/lower" &&
        mount -t overlay -o "lowerdir=/rw/kept$kept/lower,upperdir=/rw/kept$kept/upper,workdir=/rw/kept$kept/work" \
            overlay "/new$1"
}
# Directories under /tmp or /run that the job needs lie below the fresh mounts: bring them back.
while IFS= read -r dir; do
    if [ "$LAB_FOREIGN" = 1 ]; then
        lay "$dir" || fail "cannot bring $dir into the guest"
        continue
    fi
    case "$dir" in
    /tmp/* | /run/*)
        mkdir -p "/new$dir"
        mount -o bind "/pre$dir" "/new$dir" || fail "cannot bring $dir into the guest"
        ;;
    esac
done </job/keep
mkdir -p "/new$LAB_OUT"
mount -t 9p -o "$nine" out "/new$LAB_OUT" || fail "cannot mount the share for results"
mkdir -p "/new/lib/modules/$LAB_RELEASE"
pre=/pre
[ "$LAB_FOREIGN" = 1 ] && pre=/files
mount -o bind "$pre$LAB_MODULES" "/new/lib/modules/$LAB_RELEASE" || fail "cannot bind the kernel's modules"
mkdir -p /new/run/lab
mount -o bind /job /new/run/lab
hostname lab
ip link set lo up

chroot /new /bin/sh /run/lab/devices.sh || fail "cannot make the rxe devices"
echo 0 >/proc/sys/kernel/printk_devkmsg 2>/dev/null

read -r uptime _ </proc/uptime

# When the host side goes away the guest must not live on.
(
    while read -r word first second <&5; do
        [ "$word" = size ] && stty -F /dev/hvc0 rows "$first" cols "$second"
    done
    poweroff -f
) &

# Fifos, not the ports: a port can be opened once only, and a job may reopen /dev/stdout.
if [ "$LAB_TTY" = 1 ]; then
    # A terminal loses its settings when its last user closes it, and virtio sets its size to 0 0 just after the
    # first open: keep it open, and let that pass.
    exec 6<>/dev/hvc0
    usleep 200000
    chroot /new stty -F /dev/hvc0 sane rows "$LAB_ROWS" cols "$LAB_COLS" iutf8
    echo "ready $uptime" >&5
    setsid -c chroot /new /bin/bash /run/lab/job.sh <>/dev/hvc0 >&0 2>&1 5<&- 6<&-
    code=$?
    printf '%s' "$LAB_MARKER" >/dev/hvc0
else
    mkfifo /rw/out /rw/err
    cat </rw/out >"$(port lab.out)" 5<&- &
    cat </rw/err >"$(port lab.err)" 5<&- &
    exec 3>/rw/out 4>/rw/err
    echo "ready $uptime" >&5
    setsid chroot /new /bin/bash /run/lab/job.sh >&3 2>&4 3>&- 4>&- 5<&-
    code=$?
    printf '%s' "$LAB_MARKER" >&3
    printf '%s' "$LAB_MARKER" >&4
fi
sync
echo "exit $code" >&5
sleep 20
poweroff -f
