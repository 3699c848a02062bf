// SPDX-License-Identifier: GPL-2.0
/* Finds rxe devices, with source=none all devices, and fills the operations that their driver leaves empty. */
#include <linux/module.h>
#include <linux/slab.h>

#include "rxe_counters.h"

enum rc_source rc_source;
int rc_bind_error, rc_read_error;
unsigned int rc_max_counters;
bool rc_bytes, rc_optional;

static char *source = "psn";
module_param(source, charp, 0444);
MODULE_PARM_DESC(source, "psn, qpn or none: where values come from");
module_param_named(bind_error, rc_bind_error, int, 0644);
MODULE_PARM_DESC(bind_error, "errno of every bind; 0: none");
module_param_named(read_error, rc_read_error, int, 0644);
MODULE_PARM_DESC(read_error, "errno of every read; 0: none");
module_param_named(max_counters, rc_max_counters, uint, 0644);
MODULE_PARM_DESC(max_counters, "one more fails with ENOSPC; 0: no limit");

module_param_named(bytes, rc_bytes, bool, 0444);
MODULE_PARM_DESC(bytes, "counters of QPs have rdma_tx_bytes and the like, as mlx5's have from Linux 6.15 on");

module_param_named(optional, rc_optional, bool, 0444);
MODULE_PARM_DESC(optional, "the same counters, optional on the port: from its first reading by sysfs or netlink on");

static struct ib_client client;

/* Of a device that the kernel has not begun to take away. */
struct rc_device *rc_device_of(struct ib_device *ib)
{
	return ib_get_client_data(ib, &client);
}

/*
 * The core adds the values of bound QPs to the port's, because mlx5's port counters leave out QPs that are bound. rxe's do
 * not: what bound QPs have sent is taken off first.
 */
static int port_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	struct rc_device *device = rc_device_of(ib);
	int i, ret;

	if (!device)
		return -ENODEV;
	ret = device->port_stats(ib, stats, port, index);
	if (ret <= 0)
		return ret;
	i = rc_find(stats, "sent_pkts");
	if (i >= 0)
		stats->value[i] -= atomic64_read(&device->sent);
	i = rc_find(stats, "rcvd_pkts");
	if (i >= 0)
		stats->value[i] -= atomic64_read(&device->rcvd);
	return ret;
}

/*
 * The port's values by sysfs and netlink are in a struct that only a read hands out: the first one gives it a table in which
 * some counters are optional, and switches these off. The caller holds its lock.
 */
static int port_stats_optional(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	struct rdma_hw_stats *of_counters = port ? ib->port_data[port].port_counter.hstats : NULL;
	struct rc_device *device = rc_device_of(ib);
	const struct rdma_stat_desc *own;
	int i;

	if (!device)
		return -ENODEV;
	own = of_counters && stats != of_counters ? rc_descs_of(of_counters) : NULL;
	if (own && own != of_counters->descs && !device->shown && stats->num_counters == of_counters->num_counters) {
		device->descs = stats->descs;
		stats->descs = own;
		for (i = 0; i < stats->num_counters; i++)
			if (own[i].flags & IB_STAT_FLAG_OPTIONAL)
				set_bit(i, stats->is_disabled);
		device->shown = stats;
	}
	return rc_source == RC_PSN ? port_stats(ib, stats, port, index) : device->port_stats(ib, stats, port, index);
}

static int modify_stat(struct ib_device *ib, u32 port, unsigned int index, bool enable)
{
	return 0;
}

static int modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct rc_device *device = rc_device_of(qp->device);
	int ret;

	if (!device)
		return -ENODEV;
	ret = device->modify_qp(qp, attr, mask, udata);
	if (!ret)
		rc_psn_set(qp, attr, mask);
	return ret;
}

static int add(struct ib_device *ib)
{
	struct rc_device *device;

	/* What a test adds alone can be counted on any device. */
	if ((ib->ops.driver_id != RDMA_DRIVER_RXE && rc_source != RC_NONE) || ib->ops.counter_bind_qp)
		return -EOPNOTSUPP;
	device = kzalloc(sizeof(*device), GFP_KERNEL);
	if (!device)
		return -ENOMEM;
	device->ib = ib;
	device->port_stats = ib->ops.get_hw_stats;
	device->modify_qp = ib->ops.modify_qp;
	ib_set_client_data(ib, &client, device);
	ib_set_device_ops(ib, &rc_ops);		/* fills what is empty, and no more */
	if (rc_source == RC_PSN) {
		ib->ops.get_hw_stats = port_stats;
		ib->ops.modify_qp = modify_qp;
	}
	if (rc_optional) {
		ib->ops.get_hw_stats = port_stats_optional;
		ib->ops.modify_hw_stat = modify_stat;
	}
	return 0;
}

static void remove(struct ib_device *ib, void *data)
{
	struct rc_device *device = data;
	bool bound;

	if (!device)
		return;
	/* Also when the device goes away under bound QPs: they are modified and counted after this. */
	ib->ops.get_hw_stats = device->port_stats;
	ib->ops.modify_qp = device->modify_qp;
	if (rc_optional)
		ib->ops.modify_hw_stat = NULL;
	if (device->shown) {
		mutex_lock(&device->shown->lock);
		device->shown->descs = device->descs;
		bitmap_zero(device->shown->is_disabled, device->shown->num_counters);
		mutex_unlock(&device->shown->lock);
		device->shown = NULL;
	}
	/*
	 * Then unbind and dealloc are still to come, and the core calls them unchecked: they stay, with the device that the
	 * counters refer to, and the counters hold this module until they are gone.
	 */
	mutex_lock(&rc_lock);
	bound = device->gone = device->live;
	mutex_unlock(&rc_lock);
	if (bound)
		return;
	ib->ops.counter_alloc_stats = NULL;
	ib->ops.counter_bind_qp = NULL;
	ib->ops.counter_unbind_qp = NULL;
	ib->ops.counter_dealloc = NULL;
	ib->ops.counter_update_stats = NULL;
#ifdef COUNTER_HAS_DRIVER_PART
	ib->ops.counter_init = NULL;
	ib->ops.size_rdma_counter = 0;
#endif
	kfree(device);
}

static struct ib_client client = {
	.name = "rxe_counters",
	.add = add,
	.remove = remove,
	.no_kverbs_req = 1,
};

static int __init rxe_counters_init(void)
{
	int ret;

	if (!strcmp(source, "psn"))
		rc_source = RC_PSN;
	else if (!strcmp(source, "qpn"))
		rc_source = RC_QPN;
	else if (!strcmp(source, "none"))
		rc_source = RC_NONE;
	else
		return -EINVAL;
	rc_control_init();
	ret = ib_register_client(&client);
	if (ret)
		rc_control_exit();
	return ret;
}

static void __exit rxe_counters_exit(void)
{
	ib_unregister_client(&client);
	rc_control_exit();
	rc_counters_exit();
}

module_init(rxe_counters_init);
module_exit(rxe_counters_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Test only: per-QP counters for rdma_rxe");
