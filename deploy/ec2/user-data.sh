#!/bin/bash
# EC2 user data for Debian 13 on amd64: brings up SoftRoCE and rdmatop's lab. Set `repository` before use.
# It runs at the first boot, and once more at the next one, because the cloud kernel has no SoftRoCE.
set -euo pipefail

repository=        # what `git clone` takes: rdmatop's source
source=/opt/rdmatop
export HOME=/root DEBIAN_FRONTEND=noninteractive

# Installs the generic kernel in place of the running cloud kernel.
take_generic_kernel() {
    apt-get update
    apt-get install -y linux-image-amd64
    # The package of a running kernel asks before it goes.
    echo "linux-base linux-base/removing-running-kernel boolean false" | debconf-set-selections
    apt-get purge -y "linux-image-cloud-amd64" "linux-image-$(uname -r)"
}

# Makes this script run at the next boot too.
come_again() {
    install -m 755 "$0" /usr/local/sbin/rdmatop-setup
    cat >/etc/systemd/system/rdmatop-setup.service <<'UNIT'
[Unit]
Description=Build rdmatop and bring up its lab
Wants=network-online.target
After=network-online.target
ConditionPathExists=!/usr/local/bin/rdmatop

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/rdmatop-setup

[Install]
WantedBy=multi-user.target
UNIT
    systemctl enable rdmatop-setup.service
}

build() {
    apt-get update
    apt-get install -y gcc git make perftest rdma-core ibverbs-providers libibverbs-dev iproute2 rustup
    rustup default stable
    [ -d "$source" ] || git clone "$repository" "$source"
    cd "$source"
    cargo xtask setup --no-kernels
    cargo build --release -p rdmatop
    make -C examples OUT=/usr/local/lib/rdmatop
    install -m 755 target/release/rdmatop /usr/local/bin/rdmatop
}

# rxe0 on the interface of the default route, now and after each boot.
lab() {
    install -m 644 "$source/deploy/systemd/rdmatop-lab.service" /etc/systemd/system/rdmatop-lab.service
    systemctl daemon-reload
    systemctl enable --now rdmatop-lab.service
}

if [ -z "$repository" ]; then
    echo "user-data.sh: set \`repository\`: without the source there is nothing to build" >&2
    exit 2
fi
case $(uname -r) in
*-cloud-*)
    come_again
    take_generic_kernel
    systemctl reboot
    ;;
*)
    build
    lab
    ;;
esac
