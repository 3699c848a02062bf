/* What each example needs: a reliable connection (RC), made step by step, with plain verbs and nothing else.
 *
 * The order in which the objects are made is the order in which `rdmatop --trace` prints them:
 *   context  an open device
 *   PD       protection domain: which memory and which QPs belong together
 *   MR       memory region: memory that the device may read and write
 *   CQ       completion queue: where the device reports what it has finished
 *   QP       queue pair: a send queue and a receive queue, which go RESET -> INIT -> RTR -> RTS
 */
#ifndef RC_H
#define RC_H

#include <infiniband/verbs.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a peer has to know of this end. The ends of an example exchange it over a socket pair, jobs over TCP or by MPI. */
struct rc_address {
	uint32_t qpn;
	uint32_t psn;
	uint32_t rkey;
	uint32_t mtu;
	uint64_t buffer;
	union ibv_gid gid;
};

struct rc {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
	size_t size;
	int gid_index;
	/* A packet without an answer is sent again after 4.096 us * 2^timeout. `rc_open` makes it 14: 67 ms. */
	uint8_t timeout;
	struct rc_address self;
	struct rc_address peer;
};

/* Set by SIGINT, SIGTERM or the end of the time: loops look at it. */
extern volatile sig_atomic_t rc_stop;

/* Takes SIGINT and SIGTERM as the wish to stop; stops after `seconds` too unless that is 0. */
void rc_handle_signals(unsigned seconds);

/* Starts a process that dies with this one; returns as fork(2) does. `name` is what rdmatop shows of it. */
int rc_fork(const char *name);

/* Prints what failed and why, and ends the process with 1. */
void rc_die(const char *what) __attribute__((noreturn));

/* Opens the device and makes PD, MR and CQ. A second QP of a process takes them from the first (`rc_second`). */
void rc_open(struct rc *rc, const char *device, int gid_index, size_t size, int depth);
void rc_second(struct rc *rc, const struct rc *first);

/* Makes the QP, and what the peer has to know of it in `self`. Queues hold `depth` work requests. */
void rc_create_qp(struct rc *rc, int depth);

/* Sends `self` and takes `peer` over a connected socket. */
void rc_exchange(struct rc *rc, int socket);

/* RESET -> INIT: the QP belongs to a port now, and receives may be posted. */
void rc_to_init(struct rc *rc);

/* INIT -> RTR (ready to receive: it knows its peer) -> RTS (ready to send). retry_cnt 7 is what most programs use;
 * SoftRoCE then sends again for ever. */
void rc_connect(struct rc *rc, int retry_cnt);

/* Posts one work request over `length` bytes of the buffer from `offset` on; `remote_offset` is for RDMA WRITE. */
void rc_post_send(struct rc *rc, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t offset, uint32_t length,
		  size_t remote_offset);
void rc_post_recv(struct rc *rc, uint64_t wr_id, size_t offset, uint32_t length);

/* Waits for the next completion; false if the program is to stop. A completion with an error ends the process. */
bool rc_next(struct rc *rc, struct ibv_wc *wc);

/* Releases everything, last made first. */
void rc_close(struct rc *rc);

/* Monotonic time in nanoseconds. */
uint64_t rc_now(void);

#endif
