// SPDX-License-Identifier: GPL-2.0
/* Counters: their values, and the two ways in which the kernel reads them. */
#include <linux/delay.h>
#include <linux/math64.h>
#include <linux/timekeeping.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>

#include "testnic.h"

static const char *const pma_names[TN_PMA_COUNTERS] = {
	"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_discards",
	"port_rcv_errors", "port_xmit_wait", "link_downed", "symbol_error",
};

static u64 value(const struct tn_counter *c, u64 now)
{
	return (c->base + mul_u64_u64_div_u64(now - c->since, c->rate, NSEC_PER_SEC)) & c->mask;
}

/* Every call of the kernel begins here: it waits and fails as the test has asked. */
int tn_begin(struct tn_port *port, enum tn_call call)
{
	unsigned int delay = READ_ONCE(port->delay_ms[call]);

	if (delay)
		msleep(delay);
	return -READ_ONCE(port->fail[call]);
}

/*
 * The values of `count` counters at one instant, which is noted: a test can then compute what the reader must have got.
 */
void tn_read(struct tn_port *port, enum tn_call call, u64 *values, int from, int count)
{
	unsigned long flags;
	u64 now;
	int i;

	spin_lock_irqsave(&port->lock, flags);
	now = ktime_get_ns();
	for (i = 0; i < count; i++)
		values[i] = value(&port->counters[from + i], now);
	memmove(&port->read_at[call][1], &port->read_at[call][0], (TN_KEPT_READS - 1) * sizeof(u64));
	port->read_at[call][0] = now;
	port->reads[call]++;
	spin_unlock_irqrestore(&port->lock, flags);
}

const char *tn_counter_name(const struct tn_port *port, int index)
{
	int hw = port->device->hw;

	if (index < hw)
		return port->device->descs[index].name;
	index -= hw;
	return index < TN_PMA_COUNTERS ? pma_names[index] : port->device->stat_names[index - TN_PMA_COUNTERS];
}

int tn_counter_count(const struct tn_port *port)
{
	return port->device->hw + TN_PMA_COUNTERS + port->device->stats;
}

int tn_counter_find(const struct tn_port *port, const char *name)
{
	int i;

	for (i = 0; i < tn_counter_count(port); i++)
		if (!strcmp(tn_counter_name(port, i), name))
			return i;
	return -ENOENT;
}

int tn_counter_change(struct tn_port *port, int index, const char *how, u64 n)
{
	struct tn_counter *c = &port->counters[index];
	unsigned long flags;
	int ret = 0;
	u64 now;

	spin_lock_irqsave(&port->lock, flags);
	now = ktime_get_ns();
	c->base = value(c, now);
	c->since = now;
	if (!strcmp(how, "rate"))
		c->rate = n;
	else if (!strcmp(how, "set"))
		c->base = n;
	else if (!strcmp(how, "add"))
		c->base += n;
	else if (!strcmp(how, "bits") && n >= 1 && n <= 64)
		c->mask = n == 64 ? U64_MAX : BIT_ULL(n) - 1;
	else
		ret = -EINVAL;
	spin_unlock_irqrestore(&port->lock, flags);
	return ret;
}

void tn_counters_init(struct tn_port *port)
{
	u64 now = ktime_get_ns();
	int i;

	for (i = 0; i < ARRAY_SIZE(port->counters); i++) {
		port->counters[i].since = now;
		port->counters[i].mask = U64_MAX;
	}
}

static struct rdma_hw_stats *alloc_stats(struct ib_device *ib, u32 port)
{
	struct tn_device *device = tn_of(ib);
	int i, count = device->hw - device->own;
	struct rdma_hw_stats *stats;

	stats = rdma_alloc_hw_stats_struct(device->descs, count, RDMA_HW_STATS_DEFAULT_LIFESPAN);
	for (i = 0; stats && i < count; i++)
		if (device->descs[i].flags & IB_STAT_FLAG_OPTIONAL)
			set_bit(i, stats->is_disabled);
	return stats;
}

static int get_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 number, int index)
{
	struct tn_device *device = tn_of(ib);
	struct tn_port *port;
	int ret;

	port = &device->port[number ? number - 1 : 0];
	ret = tn_begin(port, TN_HW);
	if (ret)
		return ret;
	if (number)
		tn_read(port, TN_HW, stats->value, 0, device->hw - device->own);
	else
		tn_read(port, TN_HW, stats->value, device->hw - device->own, device->own);
	return stats->num_counters;
}

static struct rdma_hw_stats *alloc_own_stats(struct ib_device *ib)
{
	struct tn_device *device = tn_of(ib);

	return rdma_alloc_hw_stats_struct(device->descs + device->hw - device->own, device->own,
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static int modify_stat(struct ib_device *ib, u32 port, unsigned int index, bool enable)
{
	return 0;
}

const struct ib_device_ops tn_hw_ops = {
	.alloc_hw_port_stats = alloc_stats,
	.get_hw_stats = get_stats,
	.modify_hw_stat = modify_stat,
};

const struct ib_device_ops tn_own_ops = {
	.alloc_hw_device_stats = alloc_own_stats,
};

/* Real ports stop at the most that the field holds. */
static u64 at_most(u64 value, u64 max)
{
	return min(value, max);
}

static int process_mad(struct ib_device *ib, int flags, u32 number, const struct ib_wc *wc, const struct ib_grh *grh,
		       const struct ib_mad *in, struct ib_mad *out, size_t *size, u16 *pkey_index)
{
	/* The attribute lies behind 40 reserved bytes of a performance MAD's data. */
	void *attribute = out->data + 40;
	struct tn_port *port = &tn_of(ib)->port[number - 1];
	u64 v[TN_PMA_COUNTERS];

	if (in->mad_hdr.mgmt_class != IB_MGMT_CLASS_PERF_MGMT || in->mad_hdr.method != IB_MGMT_METHOD_GET)
		return IB_MAD_RESULT_SUCCESS;
	/* Asked once, when the device is registered, and by each read before the counters: no read of them. */
	if (in->mad_hdr.attr_id == IB_PMA_CLASS_PORT_INFO) {
		((struct ib_class_port_info *)attribute)->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH;
		return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
	}
	if (in->mad_hdr.attr_id != IB_PMA_PORT_COUNTERS && in->mad_hdr.attr_id != IB_PMA_PORT_COUNTERS_EXT)
		return IB_MAD_RESULT_SUCCESS;
	if (tn_begin(port, TN_PMA))
		return IB_MAD_RESULT_FAILURE;
	tn_read(port, TN_PMA, v, port->device->hw, TN_PMA_COUNTERS);
	if (in->mad_hdr.attr_id == IB_PMA_PORT_COUNTERS_EXT) {
		struct ib_pma_portcounters_ext *c = attribute;

		c->port_xmit_data = cpu_to_be64(v[TN_XMIT_DATA]);
		c->port_rcv_data = cpu_to_be64(v[TN_RCV_DATA]);
		c->port_xmit_packets = cpu_to_be64(v[TN_XMIT_PACKETS]);
		c->port_rcv_packets = cpu_to_be64(v[TN_RCV_PACKETS]);
		c->port_unicast_xmit_packets = c->port_xmit_packets;
		c->port_unicast_rcv_packets = c->port_rcv_packets;
	} else {
		struct ib_pma_portcounters *c = attribute;

		c->port_xmit_discards = cpu_to_be16(at_most(v[TN_XMIT_DISCARDS], U16_MAX));
		c->port_rcv_errors = cpu_to_be16(at_most(v[TN_RCV_ERRORS], U16_MAX));
		c->symbol_error_counter = cpu_to_be16(at_most(v[TN_SYMBOL_ERROR], U16_MAX));
		c->link_downed_counter = at_most(v[TN_LINK_DOWNED], U8_MAX);
		c->port_xmit_wait = cpu_to_be32(at_most(v[TN_XMIT_WAIT], U32_MAX));
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}

const struct ib_device_ops tn_pma_ops = {
	.process_mad = process_mad,
};
