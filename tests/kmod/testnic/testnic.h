/* SPDX-License-Identifier: GPL-2.0 */
/*
 * testnic: RDMA devices whose queue pairs move nothing, for tests. Name, driver, ports, link, counters, network device,
 * failures and delays are what a test writes to /sys/kernel/debug/testnic. What rdmatop shows of a card with hardware counters can so be held against
 * numbers that are known, on a real kernel with its real netlink and sysfs.
 */
#ifndef TESTNIC_H
#define TESTNIC_H

#include <linux/ethtool.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#define TN_MAX_PORTS 2
#define TN_MAX_HW 128
#define TN_MAX_STATS 16
#define TN_NAME_LEN 48
#define TN_KEPT_READS 8

/* What the kernel asks a driver for, and what a test can make slow or fail. */
enum tn_call {
	TN_HW,		/* hw_counters: sysfs and netlink */
	TN_PMA,		/* ports/N/counters: performance MADs */
	TN_PORT,	/* state, rate and the rest of a port */
	TN_FW,		/* firmware version: part of every netlink dump of devices */
	TN_ETH,		/* statistics of the network device */
	TN_CALLS
};

/*
 * The counters of performance MADs, which are the same for all devices; they follow the device's own. Behind them are the
 * statistics of the network device.
 */
enum tn_pma {
	TN_XMIT_DATA, TN_RCV_DATA, TN_XMIT_PACKETS, TN_RCV_PACKETS, TN_XMIT_DISCARDS, TN_RCV_ERRORS, TN_XMIT_WAIT,
	TN_LINK_DOWNED, TN_SYMBOL_ERROR, TN_PMA_COUNTERS
};

/* A counter that was `base` at `since` (ns, CLOCK_MONOTONIC) and grows by `rate` a second. */
struct tn_counter {
	u64 base;
	u64 since;
	u64 rate;
	u64 mask;
};

struct tn_device;

struct tn_port {
	struct tn_device *device;
	u32 number;
	spinlock_t lock;		/* of all that follows */
	struct tn_counter counters[TN_MAX_HW + TN_PMA_COUNTERS + TN_MAX_STATS];
	u64 reads[TN_CALLS];
	u64 read_at[TN_CALLS][TN_KEPT_READS];	/* newest first; what the values of that read were computed for */
	int fail[TN_CALLS];
	unsigned int delay_ms[TN_CALLS];
	int state;
	int width;
	int speed;
};

/* What a test asks for when it adds a device. */
struct tn_wish {
	const char *name;
	const char *driver;	/* NULL: no parent device */
	const char *firmware;
	char *hw;		/* names of hw_counters, by comma, +NAME: optional; NULL: none. Is taken apart. */
	char *commands;		/* the same, of the device itself: they count with those of its first port */
	char *netdevs;		/* of the ports, by comma; NULL: none. Is taken apart. */
	const char *net;	/* a network device to make for the first port; NULL: none */
	char *stats;		/* names of its statistics, by comma; NULL: none. Is taken apart. */
	const char *pci;	/* address of the parent; NULL: as of `driver` */
	u32 driver_id;
	u32 ports;
	u32 max_qp;
	bool ib;
	bool pma;
	bool uverbs;
	bool v1;		/* GIDs of RoCE v1 beside those of v2 */
};

struct tn_device {
	struct ib_device ib;
	struct list_head node;
	struct platform_device *parent;
	struct dentry *dir;
	struct rdma_stat_desc descs[TN_MAX_HW];
	char names[TN_MAX_HW][TN_NAME_LEN];	/* of descs: the kernel may hold the device longer than its driver does */
	int hw;			/* all; of these the device's own are the last */
	int own;
	int stats;
	char stat_names[TN_MAX_STATS][ETH_GSTRING_LEN];
	struct net_device *net;
	struct pci_dev *pci;
	u8 pfc;			/* a bit for each priority of the network device that has flow control */
	atomic_t qps_made;
	u32 max_qp;		/* QPs and PDs that it says it may have; it makes more where it is asked to */
	bool is_ib;
	bool has_v1;
	char firmware[IB_FW_VERSION_NAME_MAX];
	struct tn_port port[TN_MAX_PORTS];
};

static inline struct tn_device *tn_of(struct ib_device *ib)
{
	return container_of(ib, struct tn_device, ib);
}

/* device.c */
struct tn_device *tn_device_add(struct tn_wish *wish);
void tn_device_remove(struct tn_device *device);
void tn_drivers_unregister(void);

/* counters.c */
int tn_begin(struct tn_port *port, enum tn_call call);
void tn_read(struct tn_port *port, enum tn_call call, u64 *values, int from, int count);
int tn_counter_count(const struct tn_port *port);
int tn_counter_find(const struct tn_port *port, const char *name);
const char *tn_counter_name(const struct tn_port *port, int index);
int tn_counter_change(struct tn_port *port, int index, const char *how, u64 n);
void tn_counters_init(struct tn_port *port);
extern const struct ib_device_ops tn_hw_ops, tn_own_ops, tn_pma_ops;

/* devx.c */
extern const struct uapi_definition tn_devx_defs[];

/* objects.c */
extern const struct ib_device_ops tn_uverbs_ops;
int tn_qp_move(struct tn_device *device, u32 qpn, u32 sent, u32 received);

/* netdev.c */
int tn_net_add(struct tn_device *device, const char *name, char *stats);
void tn_net_remove(struct tn_device *device);

/* port_file.c */
void tn_port_files(struct tn_device *device, struct dentry *parent);

#endif
