# Runs as root in the guest, before the job: makes the SoftRoCE devices that /run/lab/conf asks for.
. /run/lab/conf
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
say() { echo "lab: $*" >/dev/console; }

modprobe dummy numdummies=0 || exit 1
# A machine without SoftRoCE devices has no rdma_rxe either.
rxe=rdma_rxe
[ "$LAB_DEVICES" = 0 ] && [ "$LAB_WIRE" = 0 ] && rxe=
for module in ib_uverbs rdma_ucm $rxe; do
    modprobe "$module" || { say "modprobe $module failed"; exit 1; }
done
modprobe ib_umad 2>/dev/null

# A NIC of QEMU's, which shares its PCI slot with the network interface whose address becomes its GID.
if [ -n "$LAB_NIC_DRIVER" ]; then
    modprobe vmxnet3 || { say "modprobe vmxnet3 failed"; exit 1; }
    insmod "$LAB_NIC_DRIVER" || { say "insmod $LAB_NIC_DRIVER failed"; exit 1; }
    nic=
    for dir in /sys/class/net/*; do
        case $(readlink "$dir/device/driver") in
        */vmxnet3) nic=${dir##*/} ;;
        esac
    done
    ip address add 10.79.0.1/24 dev "$nic" || exit 1
    ip link set "$nic" up || exit 1
fi

index=0
while [ "$index" -lt "$LAB_DEVICES" ]; do
    ip link add "dummy$index" type dummy || exit 1
    ip address add "10.77.$index.1/24" dev "dummy$index" || exit 1
    ip link set "dummy$index" up || exit 1
    rdma link add "rxe$index" type rxe netdev "dummy$index" || { say "rdma link add rxe$index failed"; exit 1; }
    index=$((index + 1))
done

# The kernel fills the GID table from a work queue: traffic that starts before would miss its IPv4 GID.
await_gid() {
    tries=0
    until grep -qs "ffff:0a4" "/sys/class/infiniband/$1"/ports/1/gids/[0-3] || [ "$tries" -ge 50 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
}
[ "$LAB_DEVICES" = 0 ] || await_gid "rxe$((LAB_DEVICES - 1))"
[ -z "$LAB_NIC_DRIVER" ] || await_gid vmw_pvrdma0

[ "$LAB_WIRE" = 1 ] || exit 0

# A real wire between two devices of one network namespace: the local table is moved behind rules that send
# each end's traffic to the other end through the pair, and take in only what came over it. tc netem works on it.
ip link add va type veth peer name vb || { modprobe veth && ip link add va type veth peer name vb; } || exit 1
ip address add 10.78.0.1/32 dev va
ip address add 10.78.0.2/32 dev vb
ip link set va up
ip link set vb up
for name in all va vb; do
    echo 1 >"/proc/sys/net/ipv4/conf/$name/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/$name/rp_filter"
done
ip neighbour replace 10.78.0.2 lladdr "$(cat /sys/class/net/vb/address)" dev va nud permanent
ip neighbour replace 10.78.0.1 lladdr "$(cat /sys/class/net/va/address)" dev vb nud permanent
ip route add 10.78.0.2/32 dev va src 10.78.0.1 table 101
ip route add 10.78.0.1/32 dev vb src 10.78.0.2 table 102
ip rule add pref 1 iif va lookup local
ip rule add pref 2 iif vb lookup local
ip rule add pref 5 from 10.78.0.1 to 10.78.0.2 lookup 101
ip rule add pref 6 from 10.78.0.2 to 10.78.0.1 lookup 102
ip rule add pref 9 lookup local
ip rule del pref 0
rdma link add rxa type rxe netdev va || exit 1
rdma link add rxb type rxe netdev vb || exit 1
await_gid rxb
exit 0
