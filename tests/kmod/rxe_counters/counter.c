// SPDX-License-Identifier: GPL-2.0
/* The operations by which the kernel's counter code makes, binds, reads and frees counters. */
#include <linux/module.h>
#include <linux/slab.h>

#include "rxe_counters.h"

#define PSN_MASK 0xffffff

DEFINE_MUTEX(rc_lock);
static DEFINE_XARRAY_ALLOC1(counters);	/* id -> rc_counter */
static DEFINE_XARRAY(qps);		/* address of the ib_qp -> rc_qp */

/* A key without the bits that no slab object's address has: an xarray's keys must not be tagged. */
static unsigned long key(const struct ib_qp *qp)
{
	return (unsigned long)qp >> 3;
}

int rc_find(const struct rdma_hw_stats *stats, const char *name)
{
	int i;

	for (i = 0; i < stats->num_counters; i++)
		if (!strcmp(stats->descs[i].name, name))
			return i;
	return -ENOENT;
}

/* Of the port's counters, those whose places show mlx5's optional counters of QPs where `bytes` or `optional` is set. */
static const char *const shown_as[][2] = {
	{ "send_err", "rdma_tx_packets" },
	{ "link_downed", "rdma_tx_bytes" },
	{ "retry_exceeded_err", "rdma_rx_packets" },
	{ "retry_rnr_exceeded_err", "rdma_rx_bytes" },
};

static struct rdma_stat_desc *own_descs;
static int own_descs_len;

/* The port's table under other names: what has the same number of counters can be added up by index. */
const struct rdma_stat_desc *rc_descs_of(const struct rdma_hw_stats *port)
{
	int i, j;

	if (!rc_bytes && !rc_optional)
		return port->descs;
	mutex_lock(&rc_lock);
	if (!own_descs) {
		own_descs = kmemdup(port->descs, port->num_counters * sizeof(*own_descs), GFP_KERNEL);
		own_descs_len = port->num_counters;
		for (i = 0; own_descs && i < own_descs_len; i++)
			for (j = 0; j < ARRAY_SIZE(shown_as); j++)
				if (!strcmp(own_descs[i].name, shown_as[j][0])) {
					own_descs[i].name = shown_as[j][1];
					if (rc_optional)
						own_descs[i].flags |= IB_STAT_FLAG_OPTIONAL;
				}
	}
	mutex_unlock(&rc_lock);
	return own_descs && own_descs_len == port->num_counters ? own_descs : port->descs;
}

static int query_psns(struct ib_qp *qp, u32 *sq, u32 *rq, u32 *mtu)
{
	struct ib_qp_attr *attr = kzalloc(sizeof(*attr), GFP_KERNEL);
	struct ib_qp_init_attr *init = kzalloc(sizeof(*init), GFP_KERNEL);
	int ret = -ENOMEM;

	if (attr && init)
		ret = ib_query_qp(qp, attr, IB_QP_STATE | IB_QP_SQ_PSN | IB_QP_RQ_PSN | IB_QP_PATH_MTU, init);
	if (!ret) {
		*sq = attr->sq_psn & PSN_MASK;
		*rq = attr->rq_psn & PSN_MASK;
		if (mtu)
			*mtu = ib_mtu_enum_to_int(attr->path_mtu);
	}
	kfree(attr);
	kfree(init);
	return ret;
}

/* Packets from `last` to `now`. A number that went back is of a retransmission: it counts when it passes `last` again. */
static u32 passed(u32 *last, u32 now)
{
	u32 packets = (now - *last) & PSN_MASK;

	if (packets > PSN_MASK / 2)
		return 0;
	*last = now;
	return packets;
}

static void take(struct rc_qp *qp)
{
	struct rc_counter *counter = qp->counter;
	u32 sq, rq, mtu;

	if (rc_source != RC_PSN || query_psns(qp->qp, &sq, &rq, &mtu))
		return;
	sq = passed(&qp->sq_psn, sq);
	rq = passed(&qp->rq_psn, rq);
	counter->sent += sq;
	counter->rcvd += rq;
	/* Exact where each message is a multiple of the MTU. */
	counter->sent_bytes += (u64)sq * mtu;
	counter->rcvd_bytes += (u64)rq * mtu;
	atomic64_add(sq, &counter->device->sent);
	atomic64_add(rq, &counter->device->rcvd);
}

/* A QP is bound when it goes to INIT; its first PSNs are set after that, and are no packets. */
void rc_psn_set(struct ib_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	struct rc_qp *bound;

	mutex_lock(&rc_lock);
	bound = xa_load(&qps, key(qp));
	if (bound && (mask & IB_QP_SQ_PSN))
		bound->sq_psn = attr->sq_psn & PSN_MASK;
	if (bound && (mask & IB_QP_RQ_PSN))
		bound->rq_psn = attr->rq_psn & PSN_MASK;
	mutex_unlock(&rc_lock);
}

static struct rdma_hw_stats *alloc_stats(struct rdma_counter *core)
{
	/* The core adds these to the port's by index: a longer table would write past the end of that. */
	struct rdma_hw_stats *port = core->device->port_data[core->port].port_counter.hstats;

	if (!port)
		return NULL;
	return rdma_alloc_hw_stats_struct(rc_descs_of(port), port->num_counters, RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

/*
 * As mlx5 does: a counter has the optional counters that count on the port when it is made, where QPs are bound to them too;
 * else it has none of them.
 */
static void leave_out_optional(struct rdma_counter *core, const struct rc_device *device)
{
	struct rdma_hw_stats *stats = core->stats;
	bool bound = false;
	int i;

#ifdef COUNTER_HAS_DRIVER_PART
	bound = core->mode.bind_opcnt;
#endif
	for (i = 0; i < stats->num_counters; i++)
		if ((stats->descs[i].flags & IB_STAT_FLAG_OPTIONAL) &&
		    !(bound && device->shown && !test_bit(i, device->shown->is_disabled)))
			set_bit(i, stats->is_disabled);
}

static struct rc_counter *make(struct rdma_counter *core)
{
	struct rc_device *device = rc_device_of(core->device);
	struct rc_counter *counter;
	int ret;

	if (!device)
		return ERR_PTR(-ENODEV);
	if (rc_max_counters && device->live >= rc_max_counters)
		return ERR_PTR(-ENOSPC);
	counter = kzalloc(struct_size(counter, added, core->stats->num_counters), GFP_KERNEL);
	if (!counter)
		return ERR_PTR(-ENOMEM);
	counter->device = device;
	counter->core = core;
	INIT_LIST_HEAD(&counter->qps);
	ret = xa_alloc(&counters, &core->id, counter, xa_limit_31b, GFP_KERNEL);
	if (ret) {
		kfree(counter);
		return ERR_PTR(ret);
	}
	/* The core calls the operations below for as long as the counter is there, without a look whether they are. */
	__module_get(THIS_MODULE);
	device->live++;
	leave_out_optional(core, device);
	return counter;
}

static int bind(struct rdma_counter *core, struct ib_qp *qp)
{
	struct rc_counter *counter;
	struct rc_qp *bound;
	int ret = 0;

	if (rc_bind_error)
		return -rc_bind_error;
	bound = kzalloc(sizeof(*bound), GFP_KERNEL);
	if (!bound)
		return -ENOMEM;
	bound->qp = qp;
	mutex_lock(&rc_lock);
	counter = core->id ? xa_load(&counters, core->id) : make(core);
	if (IS_ERR_OR_NULL(counter)) {
		ret = counter ? PTR_ERR(counter) : -ENOENT;
		goto out;
	}
	bound->counter = counter;
	if (rc_source == RC_PSN)
		query_psns(qp, &bound->sq_psn, &bound->rq_psn, NULL);
	/* On failure the core frees a new counter through dealloc, or keeps one that has other QPs. */
	ret = xa_err(xa_store(&qps, key(qp), bound, GFP_KERNEL));
	if (ret)
		goto out;
	list_add_tail(&bound->node, &counter->qps);
	qp->counter = core;
out:
	mutex_unlock(&rc_lock);
	if (ret)
		kfree(bound);
	return ret;
}

static int unbind(struct ib_qp *qp)
{
	struct rc_qp *bound;

	mutex_lock(&rc_lock);
	bound = xa_erase(&qps, key(qp));
	if (bound) {
		take(bound);
		list_del(&bound->node);
	}
	qp->counter = NULL;
	mutex_unlock(&rc_lock);
	kfree(bound);
	return 0;
}

static int dealloc(struct rdma_counter *core)
{
	struct rc_counter *counter;

	mutex_lock(&rc_lock);
	counter = xa_erase(&counters, core->id);
	if (counter) {
		if (!--counter->device->live && counter->device->gone)
			kfree(counter->device);
		kfree(counter);
		module_put(THIS_MODULE);
	}
	mutex_unlock(&rc_lock);
	return 0;
}

static void add_to(struct rdma_hw_stats *stats, const char *name, u64 n)
{
	int i = rc_find(stats, name);

	if (i >= 0)
		stats->value[i] += n;
}

static int read_stats(struct rdma_counter *core)
{
	struct rdma_hw_stats *stats = core->stats;
	struct rc_counter *counter;
	struct rc_qp *bound;
	int i;

	if (rc_read_error)
		return -rc_read_error;
	mutex_lock(&rc_lock);
	counter = xa_load(&counters, core->id);
	if (!counter) {
		mutex_unlock(&rc_lock);
		return -ENOENT;
	}
	for (i = 0; i < stats->num_counters; i++)
		stats->value[i] = counter->added[i];
	list_for_each_entry(bound, &counter->qps, node) {
		take(bound);
		for (i = 0; rc_source == RC_QPN && i < stats->num_counters; i++)
			stats->value[i] += bound->qp->qp_num + i;
	}
	add_to(stats, "sent_pkts", counter->sent);
	add_to(stats, "rcvd_pkts", counter->rcvd);
	add_to(stats, "rdma_tx_packets", counter->sent);
	add_to(stats, "rdma_rx_packets", counter->rcvd);
	add_to(stats, "rdma_tx_bytes", counter->sent_bytes);
	add_to(stats, "rdma_rx_bytes", counter->rcvd_bytes);
	mutex_unlock(&rc_lock);
	return 0;
}

/* Adds to counter `name` of the counter that QP `qpn` of `device` is bound to. */
int rc_add(const char *device, u32 qpn, const char *name, s64 n)
{
	struct rc_qp *bound;
	unsigned long at;
	int i, ret = -ENOENT;

	mutex_lock(&rc_lock);
	xa_for_each(&qps, at, bound) {
		if (bound->qp->qp_num != qpn || strcmp(dev_name(&bound->qp->device->dev), device))
			continue;
		i = rc_find(bound->counter->core->stats, name);
		if (i < 0)
			break;
		bound->counter->added[i] += n;
		ret = 0;
	}
	mutex_unlock(&rc_lock);
	return ret;
}

void rc_each_qp(void (*what)(const struct rc_qp *qp, void *data), void *data)
{
	struct rc_qp *bound;
	unsigned long at;

	mutex_lock(&rc_lock);
	xa_for_each(&qps, at, bound)
		what(bound, data);
	mutex_unlock(&rc_lock);
}

/* No counter is left by then: each holds the module. */
void rc_counters_exit(void)
{
	xa_destroy(&qps);
	xa_destroy(&counters);
	kfree(own_descs);
}

/* The operation's name begins as those of the driver's functions do: rdmatop looks for it in /proc/kallsyms. */
#ifdef COUNTER_HAS_DRIVER_PART

struct rc_core_counter {
	struct rdma_counter core;
};

static void init_counter(struct rdma_counter *core)
{
}

static int rxe_counter_bind_qp(struct rdma_counter *core, struct ib_qp *qp, u32 port)
{
	return bind(core, qp);
}

static int unbind_port(struct ib_qp *qp, u32 port)
{
	return unbind(qp);
}

#else
static int rxe_counter_bind_qp(struct rdma_counter *core, struct ib_qp *qp)
{
	return bind(core, qp);
}

#define unbind_port unbind
#endif

const struct ib_device_ops rc_ops = {
	.counter_alloc_stats = alloc_stats,
	.counter_bind_qp = rxe_counter_bind_qp,
	.counter_unbind_qp = unbind_port,
	.counter_dealloc = dealloc,
	.counter_update_stats = read_stats,
#ifdef COUNTER_HAS_DRIVER_PART
	.counter_init = init_counter,
	INIT_RDMA_OBJ_SIZE(rdma_counter, rc_core_counter, core),
#endif
};
