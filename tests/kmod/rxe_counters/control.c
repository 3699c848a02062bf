// SPDX-License-Identifier: GPL-2.0
/*
 * The file rxe_counters/control in debugfs: "add DEVICE QPN NAME N" adds N to counter NAME of what QP QPN of DEVICE is
 * bound to. Read, it lists the bound QPs.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>

#include "rxe_counters.h"

static struct dentry *dir;

static ssize_t control_write(struct file *file, const char __user *user, size_t len, loff_t *pos)
{
	char text[128], device[IB_DEVICE_NAME_MAX], name[48];
	long long n;
	u32 qpn;
	int ret;

	if (len >= sizeof(text))
		return -E2BIG;
	if (copy_from_user(text, user, len))
		return -EFAULT;
	text[len] = 0;
	if (sscanf(text, "add %63s %u %47s %lld", device, &qpn, name, &n) != 4)
		return -EINVAL;
	ret = rc_add(device, qpn, name, n);
	return ret ? ret : len;
}

static void show_qp(const struct rc_qp *qp, void *seq)
{
	seq_printf(seq, "%s qpn %u counter %u sent %llu rcvd %llu\n", dev_name(&qp->qp->device->dev), qp->qp->qp_num,
		   qp->counter->core->id, qp->counter->sent, qp->counter->rcvd);
}

static int control_show(struct seq_file *seq, void *unused)
{
	rc_each_qp(show_qp, seq);
	return 0;
}

static int control_open(struct inode *inode, struct file *file)
{
	return single_open(file, control_show, NULL);
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.open = control_open,
	.read = seq_read,
	.write = control_write,
	.llseek = seq_lseek,
	.release = single_release,
};

void rc_control_init(void)
{
	dir = debugfs_create_dir("rxe_counters", NULL);
	debugfs_create_file("control", 0600, dir, NULL, &control_fops);
}

void rc_control_exit(void)
{
	debugfs_remove_recursive(dir);
}
