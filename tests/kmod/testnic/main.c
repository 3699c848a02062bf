// SPDX-License-Identifier: GPL-2.0
/*
 * The file testnic/control in debugfs, one order a write:
 *   add NAME      and lines of KEY=VALUE, see wish(); NAME may have a %d
 *   remove NAME   as if the card were pulled
 *   gpu ADDRESS   /proc/driver/nvidia/gpus has a directory of this name, as NVIDIA's driver makes one for each GPU
 * Unloading removes all devices.
 */
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "testnic.h"

static LIST_HEAD(devices);
static DEFINE_MUTEX(lock);	/* of the list and of adding and removing */
static struct dentry *dir;
static struct proc_dir_entry *gpus;

static int wish(struct tn_wish *wish, char *lines)
{
	char *word, *value;

	while ((word = strsep(&lines, "\n"))) {
		if (!*word)
			continue;
		value = strchr(word, '=');
		if (!value)
			return -EINVAL;
		*value++ = 0;
		if (!strcmp(word, "driver"))
			wish->driver = value;
		else if (!strcmp(word, "firmware"))
			wish->firmware = value;
		else if (!strcmp(word, "hw"))
			wish->hw = value;
		else if (!strcmp(word, "commands"))
			wish->commands = value;
		else if (!strcmp(word, "netdevs"))
			wish->netdevs = value;
		else if (!strcmp(word, "net"))
			wish->net = value;
		else if (!strcmp(word, "stats"))
			wish->stats = value;
		else if (!strcmp(word, "pci"))
			wish->pci = value;
		else if (!strcmp(word, "driver_id") && !kstrtou32(value, 0, &wish->driver_id))
			;
		else if (!strcmp(word, "max_qp") && !kstrtou32(value, 0, &wish->max_qp))
			;
		else if (!strcmp(word, "ports") && !kstrtou32(value, 0, &wish->ports))
			;
		else if (!strcmp(word, "ib") && !kstrtobool(value, &wish->ib))
			;
		else if (!strcmp(word, "pma") && !kstrtobool(value, &wish->pma))
			;
		else if (!strcmp(word, "uverbs") && !kstrtobool(value, &wish->uverbs))
			;
		else if (!strcmp(word, "v1") && !kstrtobool(value, &wish->v1))
			;
		else
			return -EINVAL;
	}
	return wish->ports >= 1 && wish->ports <= TN_MAX_PORTS ? 0 : -EINVAL;
}

static int add(const char *name, char *lines)
{
	struct tn_wish wanted = { .name = name, .firmware = "0.0.1", .ports = 1, .max_qp = 1024 };
	struct tn_device *device;
	int ret = wish(&wanted, lines);

	if (ret)
		return ret;
	device = tn_device_add(&wanted);
	if (IS_ERR(device))
		return PTR_ERR(device);
	tn_port_files(device, dir);
	list_add_tail(&device->node, &devices);
	return 0;
}

static void drop(struct tn_device *device)
{
	list_del(&device->node);
	/* Waits for those who are in the files. */
	debugfs_remove_recursive(device->dir);
	tn_device_remove(device);
}

static int remove(const char *name)
{
	struct tn_device *device;

	list_for_each_entry(device, &devices, node) {
		/* By the name of now: a device can be renamed. */
		if (strcmp(dev_name(&device->ib.dev), name))
			continue;
		drop(device);
		return 0;
	}
	return -ENOENT;
}

static int add_gpu(const char *address)
{
	struct proc_dir_entry *parent;

	if (!gpus) {
		gpus = proc_mkdir("driver/nvidia", NULL);
		parent = gpus ? proc_mkdir("gpus", gpus) : NULL;
		if (!parent)
			return -ENOMEM;
		return proc_mkdir(address, parent) ? 0 : -ENOMEM;
	}
	return -EBUSY;
}

static ssize_t control_write(struct file *file, const char __user *user, size_t len, loff_t *pos)
{
	char *text, *rest, *what, *name;
	int ret = -EINVAL;

	if (len >= 4 * PAGE_SIZE)
		return -E2BIG;
	text = memdup_user_nul(user, len);
	if (IS_ERR(text))
		return PTR_ERR(text);
	rest = strim(text);
	what = strsep(&rest, " ");
	name = strsep(&rest, "\n");
	mutex_lock(&lock);
	if (name && !strcmp(what, "add"))
		ret = add(name, rest);
	else if (name && !strcmp(what, "remove"))
		ret = remove(name);
	else if (name && !strcmp(what, "gpu"))
		ret = add_gpu(name);
	mutex_unlock(&lock);
	kfree(text);
	return ret ? ret : len;
}

static const struct file_operations control_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = control_write,
	.llseek = noop_llseek,
};

static int __init testnic_init(void)
{
	dir = debugfs_create_dir("testnic", NULL);
	if (IS_ERR(dir))
		return PTR_ERR(dir);
	debugfs_create_file("control", 0200, dir, NULL, &control_fops);
	return 0;
}

static void __exit testnic_exit(void)
{
	struct tn_device *device, *next;

	/* An open file of debugfs holds the module: nobody adds any more. */
	list_for_each_entry_safe(device, next, &devices, node)
		drop(device);
	debugfs_remove_recursive(dir);
	proc_remove(gpus);
	tn_drivers_unregister();
}

module_init(testnic_init);
module_exit(testnic_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Test only: RDMA devices whose ports and counters are what a test says");
