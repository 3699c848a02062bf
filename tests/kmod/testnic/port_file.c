// SPDX-License-Identifier: GPL-2.0
/*
 * The file of a port, testnic/DEVICE/PORT in debugfs. Written, it takes one order a line; names come last, because there
 * are counters with a blank in theirs:
 *   rate|set|add N NAME    counter NAME grows by N a second, is N, is N more
 *   bits N NAME            counter NAME is N bits wide
 *   state N                as of enum ib_port_state, with the event of it
 *   link WIDTH SPEED       as of enum ib_port_width and ib_port_speed
 *   psn QPN SENT RECEIVED  the PSNs of the device's queue pair QPN move by so much
 *   pfc MASK               flow control on these priorities of the network device that the module made
 *   fail ERRNO CALL        0: no failure; CALL is hw, pma, port, fw or eth
 *   delay MS CALL
 * Read, it tells the state, when what was read, and the counters.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>

#include "testnic.h"

static const char *const calls[TN_CALLS] = { "hw", "pma", "port", "fw", "eth" };

static int find_call(const char *name)
{
	int i;

	for (i = 0; i < TN_CALLS; i++)
		if (!strcmp(calls[i], name))
			return i;
	return -EINVAL;
}

static void set_state(struct tn_port *port, int state)
{
	struct ib_event event = {
		.device = &port->device->ib,
		.element.port_num = port->number,
		.event = state == IB_PORT_ACTIVE ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR,
	};

	WRITE_ONCE(port->state, state);
	ib_dispatch_event(&event);
}

static int order(struct tn_port *port, const char *line)
{
	const char *name;
	char word[16];
	u64 n;
	u32 qpn, sent, received;
	int a, b, index, at = 0;

	if (sscanf(line, "state %d", &a) == 1) {
		set_state(port, a);
		return 0;
	}
	if (!strncmp(line, "log ", 4)) {
		ibdev_err(&port->device->ib, "%s\n", line + 4);
		return 0;
	}
	if (sscanf(line, "link %d %d", &a, &b) == 2) {
		WRITE_ONCE(port->width, a);
		WRITE_ONCE(port->speed, b);
		return 0;
	}
	if (sscanf(line, "psn %u %u %u", &qpn, &sent, &received) == 3)
		return tn_qp_move(port->device, qpn, sent, received);
	if (sscanf(line, "pfc %i", &a) == 1) {
		WRITE_ONCE(port->device->pfc, a);
		return 0;
	}
	if (sscanf(line, "%15s %llu %n", word, &n, &at) != 2 || !at)
		return -EINVAL;
	name = line + at;
	if (!strcmp(word, "fail") || !strcmp(word, "delay")) {
		index = find_call(name);
		if (index < 0)
			return index;
		if (word[0] == 'f')
			WRITE_ONCE(port->fail[index], n);
		else
			WRITE_ONCE(port->delay_ms[index], n);
		return 0;
	}
	index = tn_counter_find(port, name);
	return index < 0 ? index : tn_counter_change(port, index, word, n);
}

static ssize_t port_write(struct file *file, const char __user *user, size_t len, loff_t *pos)
{
	struct tn_port *port = ((struct seq_file *)file->private_data)->private;
	char *text, *rest, *line;
	int ret = 0;

	if (len >= PAGE_SIZE)
		return -E2BIG;
	text = memdup_user_nul(user, len);
	if (IS_ERR(text))
		return PTR_ERR(text);
	rest = text;
	while (!ret && (line = strsep(&rest, "\n")))
		if (*line)
			ret = order(port, line);
	kfree(text);
	return ret ? ret : len;
}

static int port_show(struct seq_file *seq, void *unused)
{
	struct tn_port *port = seq->private;
	int call, i, count = tn_counter_count(port);

	seq_printf(seq, "state %d\nlink %d %d\n", port->state, port->width, port->speed);
	for (call = 0; call < TN_CALLS; call++) {
		seq_printf(seq, "reads %s %llu", calls[call], port->reads[call]);
		for (i = 0; i < TN_KEPT_READS; i++)
			seq_printf(seq, " %llu", port->read_at[call][i]);
		seq_putc(seq, '\n');
	}
	for (i = 0; i < count; i++)
		seq_printf(seq, "counter %llu %llu %llu %llu %s\n", port->counters[i].base, port->counters[i].since,
			   port->counters[i].rate, port->counters[i].mask, tn_counter_name(port, i));
	return 0;
}
static int port_open(struct inode *inode, struct file *file)
{
	return single_open(file, port_show, inode->i_private);
}

static const struct file_operations port_fops = {
	.owner = THIS_MODULE,
	.open = port_open,
	.read = seq_read,
	.write = port_write,
	.llseek = seq_lseek,
	.release = single_release,
};

void tn_port_files(struct tn_device *device, struct dentry *parent)
{
	char name[4];
	u32 i;

	device->dir = debugfs_create_dir(dev_name(&device->ib.dev), parent);
	for (i = 0; i < device->ib.phys_port_cnt; i++) {
		snprintf(name, sizeof(name), "%u", i + 1);
		debugfs_create_file(name, 0600, device->dir, &device->port[i], &port_fops);
	}
}
