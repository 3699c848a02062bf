// SPDX-License-Identifier: GPL-2.0
/*
 * The network device of a first port, where a test asks for one: Ethernet whose `ethtool -S` has the statistics and whose dcb
 * has the flow control that the test says. What is sent over it goes nowhere.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/netdevice.h>
#include <net/dcbnl.h>

#include "testnic.h"

struct tn_net {
	struct tn_device *device;
};

static struct tn_device *device_of(struct net_device *netdev)
{
	return ((struct tn_net *)netdev_priv(netdev))->device;
}

static netdev_tx_t transmit(struct sk_buff *skb, struct net_device *netdev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops netdev_ops = {
	.ndo_start_xmit = transmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static int sset_count(struct net_device *netdev, int set)
{
	return set == ETH_SS_STATS ? device_of(netdev)->stats : -EOPNOTSUPP;
}

static void strings(struct net_device *netdev, u32 set, u8 *data)
{
	struct tn_device *device = device_of(netdev);
	int i;

	for (i = 0; set == ETH_SS_STATS && i < device->stats; i++)
		strscpy(data + i * ETH_GSTRING_LEN, device->stat_names[i], ETH_GSTRING_LEN);
}

static void stats(struct net_device *netdev, struct ethtool_stats *request, u64 *values)
{
	struct tn_device *device = device_of(netdev);

	/* There is no way to fail here. */
	tn_begin(&device->port[0], TN_ETH);
	tn_read(&device->port[0], TN_ETH, values, device->hw + TN_PMA_COUNTERS, device->stats);
}

static const struct ethtool_ops ethtool_ops = {
	.get_link = ethtool_op_get_link,
	.get_sset_count = sset_count,
	.get_strings = strings,
	.get_ethtool_stats = stats,
};

static int get_pfc(struct net_device *netdev, struct ieee_pfc *pfc)
{
	pfc->pfc_cap = IEEE_8021QAZ_MAX_TCS;
	pfc->pfc_en = READ_ONCE(device_of(netdev)->pfc);
	return 0;
}

static const struct dcbnl_rtnl_ops dcb_ops = {
	.ieee_getpfc = get_pfc,
};

static int take_stats(struct tn_device *device, char *list)
{
	char *name;

	while ((name = strsep(&list, ","))) {
		if (device->stats == TN_MAX_STATS)
			return -E2BIG;
		if (strscpy(device->stat_names[device->stats++], name, ETH_GSTRING_LEN) < 0)
			return -E2BIG;
	}
	return 0;
}

int tn_net_add(struct tn_device *device, const char *name, char *list)
{
	struct net_device *netdev;
	int ret = list ? take_stats(device, list) : 0;

	if (ret)
		return ret;
	netdev = alloc_etherdev(sizeof(struct tn_net));
	if (!netdev)
		return -ENOMEM;
	((struct tn_net *)netdev_priv(netdev))->device = device;
	if (strscpy(netdev->name, name, IFNAMSIZ) < 0) {
		free_netdev(netdev);
		return -E2BIG;
	}
	eth_hw_addr_random(netdev);
	netdev->netdev_ops = &netdev_ops;
	netdev->ethtool_ops = &ethtool_ops;
	netdev->dcbnl_ops = &dcb_ops;
	netdev->max_mtu = 9216;
	/* Nobody asks a neighbour for its address: there is none. */
	netdev->flags |= IFF_NOARP;
	ret = register_netdev(netdev);
	if (ret) {
		free_netdev(netdev);
		return ret;
	}
	device->net = netdev;
	return ib_device_set_netdev(&device->ib, netdev, 1);
}

/* When the RDMA device is unregistered, or was never registered: it must hold the network device no more. */
void tn_net_remove(struct tn_device *device)
{
	if (!device->net)
		return;
	ib_device_set_netdev(&device->ib, NULL, 1);
	unregister_netdev(device->net);
	free_netdev(device->net);
}
