// SPDX-License-Identifier: GPL-2.0
/* The RDMA devices: what the kernel asks of any, and how they come and go. */
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_verbs.h>

#include "testnic.h"

#define GUIDS 0x0200000000000000ULL

/* A parent's driver; several devices have the same, and it stays until the module goes. */
struct parent_driver {
	struct list_head node;
	struct platform_driver driver;
	char name[32];
};

static LIST_HEAD(drivers);
static u64 made;	/* devices ever, for GUIDs and the parents' numbers */

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	memset(attr, 0, sizeof(*attr));
	attr->sys_image_guid = ib->node_guid;
	attr->max_qp = tn_of(ib)->max_qp;
	attr->max_cq = 1024;
	attr->max_mr = 1024;
	attr->max_pd = tn_of(ib)->max_qp;
	attr->max_pkeys = 1;
	return 0;
}

static int query_port(struct ib_device *ib, u32 number, struct ib_port_attr *attr)
{
	struct tn_port *port = &tn_of(ib)->port[number - 1];
	int ret = tn_begin(port, TN_PORT);

	if (ret)
		return ret;
	/* The kernel's own cache asks after each event; a test waits for what a process has asked. */
	if (!(current->flags & PF_KTHREAD))
		tn_read(port, TN_PORT, NULL, 0, 0);
	attr->state = READ_ONCE(port->state);
	attr->phys_state = attr->state >= IB_PORT_INIT ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->active_width = READ_ONCE(port->width);
	attr->active_speed = READ_ONCE(port->speed);
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = tn_of(ib)->is_ib ? IB_MTU_4096 : IB_MTU_1024;
	attr->gid_tbl_len = 8;
	attr->pkey_tbl_len = 1;
	attr->max_msg_sz = 1U << 30;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	if (tn_of(ib)->is_ib) {
		attr->lid = 100 + number;
		attr->sm_lid = 1;
	}
	return 0;
}

static int port_immutable(struct ib_device *ib, u32 number, struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = 8;
	immutable->pkey_tbl_len = 1;
	/* No MADs of the core's own: they would need a queue pair. */
	immutable->core_cap_flags = tn_of(ib)->is_ib ? RDMA_CORE_CAP_PROT_IB : RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP;
	/* The kernel then makes a GID of each kind for each address of the network device. */
	if (tn_of(ib)->has_v1)
		immutable->core_cap_flags |= RDMA_CORE_CAP_PROT_ROCE;
	return 0;
}

static enum rdma_link_layer link_layer(struct ib_device *ib, u32 number)
{
	return tn_of(ib)->is_ib ? IB_LINK_LAYER_INFINIBAND : IB_LINK_LAYER_ETHERNET;
}

static int query_gid(struct ib_device *ib, u32 number, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	if (!index) {
		gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
		gid->global.interface_id = ib->node_guid;
	}
	return 0;
}

static int add_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int del_gid(const struct ib_gid_attr *attr, void **context)
{
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 number, u16 index, u16 *pkey)
{
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static void firmware(struct ib_device *ib, char *text)
{
	struct tn_port *port = &tn_of(ib)->port[0];

	/* There is no way to fail here. */
	tn_begin(port, TN_FW);
	port->reads[TN_FW]++;
	strscpy(text, tn_of(ib)->firmware, IB_FW_VERSION_NAME_MAX);
}

static const struct ib_device_ops base_ops = {
	.owner = THIS_MODULE,
	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = port_immutable,
	.get_link_layer = link_layer,
	.query_gid = query_gid,
	.add_gid = add_gid,
	.del_gid = del_gid,
	.query_pkey = query_pkey,
	.get_dev_fw_str = firmware,
};

static int register_driver(const char *name)
{
	struct parent_driver *parent;
	int ret;

	list_for_each_entry(parent, &drivers, node)
		if (!strcmp(parent->name, name))
			return 0;
	parent = kzalloc(sizeof(*parent), GFP_KERNEL);
	if (!parent)
		return -ENOMEM;
	strscpy(parent->name, name, sizeof(parent->name));
	parent->driver.driver.name = parent->name;
	ret = platform_driver_register(&parent->driver);
	if (ret)
		kfree(parent);
	else
		list_add(&parent->node, &drivers);
	return ret;
}

void tn_drivers_unregister(void)
{
	struct parent_driver *parent, *next;

	list_for_each_entry_safe(parent, next, &drivers, node) {
		platform_driver_unregister(&parent->driver);
		kfree(parent);
	}
}

static int take_names(struct tn_device *device, char *list)
{
	char *name;

	while ((name = strsep(&list, ","))) {
		struct rdma_stat_desc *desc = &device->descs[device->hw];

		if (device->hw == TN_MAX_HW)
			return -E2BIG;
		desc->flags = *name == '+' ? IB_STAT_FLAG_OPTIONAL : 0;
		if (strscpy(device->names[device->hw], name + (*name == '+'), TN_NAME_LEN) < 0)
			return -E2BIG;
		desc->name = device->names[device->hw++];
	}
	return 0;
}

static int take_netdevs(struct tn_device *device, char *list)
{
	struct net_device *netdev;
	u32 number = 0;
	char *name;
	int ret;

	while ((name = strsep(&list, ",")) && number++ < device->ib.phys_port_cnt) {
		netdev = dev_get_by_name(&init_net, name);
		if (!netdev)
			return -ENODEV;
		ret = ib_device_set_netdev(&device->ib, netdev, number);
		dev_put(netdev);
		if (ret)
			return ret;
	}
	return 0;
}

static void free_device(struct tn_device *device)
{
	struct platform_device *parent = device->parent;
	struct pci_dev *pci = device->pci;

	/* Before its memory goes, which those who ask the network device for statistics look at. */
	tn_net_remove(device);
	ib_dealloc_device(&device->ib);
	if (parent)
		platform_device_unregister(parent);
	pci_dev_put(pci);
}

static void init_ports(struct tn_device *device, u32 count)
{
	u32 i;

	device->ib.phys_port_cnt = count;
	for (i = 0; i < count; i++) {
		struct tn_port *port = &device->port[i];

		port->device = device;
		port->number = i + 1;
		spin_lock_init(&port->lock);
		/* 100 Gb/s. */
		port->state = IB_PORT_ACTIVE;
		port->width = IB_WIDTH_4X;
		port->speed = IB_SPEED_EDR;
		tn_counters_init(port);
	}
}

static int set_parent(struct tn_device *device, const char *driver)
{
	struct platform_device *parent;
	int ret = register_driver(driver);

	if (ret)
		return ret;
	parent = platform_device_register_simple(driver, made, NULL, 0);
	if (IS_ERR(parent))
		return PTR_ERR(parent);
	device->parent = parent;
	device->ib.dev.parent = &parent->dev;
	return 0;
}

/* The card is what sits at this address: its link to the slot is that of a real, or an emulated, PCI function. */
static int set_pci(struct tn_device *device, const char *address)
{
	unsigned int domain, bus, slot, function;

	if (sscanf(address, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		return -EINVAL;
	device->pci = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
	if (!device->pci)
		return -ENODEV;
	device->ib.dev.parent = &device->pci->dev;
	return 0;
}

struct tn_device *tn_device_add(struct tn_wish *wish)
{
	struct tn_device *device;
	int ret;

	device = ib_alloc_device(tn_device, ib);
	if (!device)
		return ERR_PTR(-ENOMEM);
	made++;
	init_ports(device, wish->ports);
	device->is_ib = wish->ib;
	device->has_v1 = wish->v1;
	device->max_qp = wish->max_qp;
	device->ib.node_type = RDMA_NODE_IB_CA;
	device->ib.node_guid = cpu_to_be64(GUIDS + made);
	device->ib.num_comp_vectors = 1;
	strscpy(device->firmware, wish->firmware, sizeof(device->firmware));
	ib_set_device_ops(&device->ib, &base_ops);
	device->ib.ops.driver_id = wish->driver_id;
	if (wish->hw)
		ib_set_device_ops(&device->ib, &tn_hw_ops);
	if (wish->commands)
		ib_set_device_ops(&device->ib, &tn_own_ops);
	if (wish->pma)
		ib_set_device_ops(&device->ib, &tn_pma_ops);
	if (wish->uverbs)
		ib_set_device_ops(&device->ib, &tn_uverbs_ops);
	/* A program must name the device's driver in such a call: mlx5's methods are there where it is mlx5's. */
	if (wish->driver_id == RDMA_DRIVER_MLX5)
		device->ib.driver_def = tn_devx_defs;
	ret = wish->hw ? take_names(device, wish->hw) : 0;
	device->own = -device->hw;
	if (!ret && wish->commands)
		ret = take_names(device, wish->commands);
	device->own += device->hw;
	if (!ret && wish->driver)
		ret = set_parent(device, wish->driver);
	if (!ret && wish->pci)
		ret = set_pci(device, wish->pci);
	if (!ret && wish->net)
		ret = tn_net_add(device, wish->net, wish->stats);
	if (!ret && wish->netdevs)
		ret = take_netdevs(device, wish->netdevs);
	if (!ret)
		ret = ib_register_device(&device->ib, wish->name, NULL);
	if (ret) {
		free_device(device);
		return ERR_PTR(ret);
	}
	return device;
}

void tn_device_remove(struct tn_device *device)
{
	ib_unregister_device(&device->ib);
	free_device(device);
}
