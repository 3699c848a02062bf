/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory regions: the guest's memory, which is mapped in QEMU, by key. */
#include <errno.h>
#include <stdlib.h>

#include "loopback.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define MAX_REGIONS 65536

struct region {
	struct ibv_mr mr;
	uint64_t iova;
};

/* By key; 0 is none. */
static struct region *regions[MAX_REGIONS];

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned int access)
{
	struct region *region = calloc(1, sizeof(*region));
	uint32_t key = 1;

	(void)access;
	if (!region)
		return NULL;
	pthread_mutex_lock(&loopback_lock);
	while (key < MAX_REGIONS && regions[key])
		key++;
	if (key < MAX_REGIONS)
		regions[key] = region;
	pthread_mutex_unlock(&loopback_lock);
	if (key == MAX_REGIONS) {
		free(region);
		errno = ENOMEM;
		return NULL;
	}
	region->iova = iova;
	region->mr = (struct ibv_mr) {
		.context = pd->context, .pd = pd, .addr = address, .length = length,
		.handle = key, .lkey = key, .rkey = key,
	};
	return &region->mr;
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, address, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, address, length, (uintptr_t)address, (unsigned int)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	pthread_mutex_lock(&loopback_lock);
	regions[mr->lkey] = NULL;
	pthread_mutex_unlock(&loopback_lock);
	free(mr);
	return 0;
}

/* Where `length` bytes of an element lie; NULL when they are not all in its region. Under the lock. */
void *memory_at(const struct ibv_sge *sge, uint32_t length)
{
	struct region *region = sge->lkey < MAX_REGIONS ? regions[sge->lkey] : NULL;
	uint64_t offset;

	if (!region || sge->addr < region->iova)
		return NULL;
	offset = sge->addr - region->iova;
	if (offset > region->mr.length || length > region->mr.length - offset)
		return NULL;
	return (char *)region->mr.addr + offset;
}
