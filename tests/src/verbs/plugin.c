/* A library that a program loads, uses and unloads: two connected QPs of one process, and writes from one to the other.
 * Where something fails it ends the process, as the examples do whose common part it is linked with. */
#include <stdlib.h>
#include "rc.h"

enum { LENGTH = 64, DEPTH = 8 };

struct plugin {
	struct rc near;
	struct rc far;
};

struct plugin *plugin_open(const char *device)
{
	struct plugin *plugin = calloc(1, sizeof(*plugin));

	if (!plugin)
		rc_die("calloc");
	rc_open(&plugin->near, device, 0, 4096, DEPTH);
	rc_second(&plugin->far, &plugin->near);
	rc_create_qp(&plugin->near, DEPTH);
	rc_create_qp(&plugin->far, DEPTH);
	plugin->near.peer = plugin->far.self;
	plugin->far.peer = plugin->near.self;
	rc_to_init(&plugin->near);
	rc_to_init(&plugin->far);
	rc_connect(&plugin->near, 7);
	rc_connect(&plugin->far, 7);
	return plugin;
}

uint32_t plugin_qpn(const struct plugin *plugin)
{
	return plugin->near.qp->qp_num;
}

/* Writes of LENGTH bytes, one after another. */
void plugin_post(struct plugin *plugin, uint64_t count)
{
	struct ibv_wc wc;

	for (uint64_t number = 0; number < count; number++) {
		rc_post_send(&plugin->near, number, IBV_WR_RDMA_WRITE, 0, LENGTH, 2048);
		if (!rc_next(&plugin->near, &wc))
			rc_die("stopped");
	}
}

void plugin_close(struct plugin *plugin)
{
	ibv_destroy_qp(plugin->far.qp);
	rc_close(&plugin->near);
	free(plugin);
}
