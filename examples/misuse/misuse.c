/* Uses verbs in ways that work and are wrong.
 *
 *   misuse [-d DEVICE] [-t SECONDS] mr-churn|qp-churn|qp-leak|memlock
 *
 *   mr-churn  registers and deregisters a buffer for each transfer it might make, as fast as it can
 *   qp-churn  makes a QP and destroys it, as fast as it can
 *   qp-leak   makes eight QPs each second and destroys none
 *   memlock   as a user without rights, with 8 KiB of memory that may be locked, registers 1 MiB ten times a second
 */
#include "rc.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NOBODY = 65534, LARGE = 1 << 20 };

static void mr_churn(struct rc *rc)
{
	struct ibv_mr *mr = ibv_reg_mr(rc->pd, rc->buffer, 4096, IBV_ACCESS_LOCAL_WRITE);

	if (!mr)
		rc_die("ibv_reg_mr");
	ibv_dereg_mr(mr);
}

static void qp_churn(struct rc *rc)
{
	struct rc other;

	rc_second(&other, rc);
	rc_create_qp(&other, 1);
	rc_to_init(&other);
	ibv_destroy_qp(other.qp);
}

static void qp_leak(struct rc *rc)
{
	struct rc other;

	rc_second(&other, rc);
	rc_create_qp(&other, 1);
	usleep(125000);
}

static bool memlock(struct rc *rc)
{
	struct ibv_mr *mr = ibv_reg_mr(rc->pd, rc->buffer, LARGE, IBV_ACCESS_LOCAL_WRITE);

	usleep(100000);
	if (mr)
		ibv_dereg_mr(mr);
	return !mr;
}

/* CAP_IPC_LOCK would lift the limit. */
static void give_up_rights(void)
{
	struct rlimit small = { 8192, 8192 };
	pid_t parent = getppid();
	int signal = 0;

	prctl(PR_GET_PDEATHSIG, &signal);
	if (setrlimit(RLIMIT_MEMLOCK, &small) || setuid(NOBODY))
		rc_die("give up rights");
	/* setuid(2) took away that this process dies with the one that started it. */
	prctl(PR_SET_PDEATHSIG, signal);
	if (signal && getppid() != parent)
		exit(1);
}

int main(int argc, char **argv)
{
	const char *device = "rxe0", *what;
	unsigned long long done = 0, failed = 0;
	unsigned seconds = 0;
	struct rc rc;
	int option;

	while ((option = getopt(argc, argv, "d:t:")) != -1) {
		if (option == 'd')
			device = optarg;
		else if (option == 't')
			seconds = (unsigned)atoi(optarg);
		else
			argc = 0;
	}
	if (argc != optind + 1) {
		fprintf(stderr, "usage: misuse [-d DEVICE] [-t SECONDS] mr-churn|qp-churn|qp-leak|memlock\n");
		return 2;
	}
	what = argv[optind];
	rc_handle_signals(seconds);
	rc_open(&rc, device, 0, LARGE, 16);
	rc_create_qp(&rc, 1);
	if (!strcmp(what, "memlock"))
		give_up_rights();
	printf("%s: PID %d, %s\n", what, getpid(), device);
	while (!rc_stop) {
		if (!strcmp(what, "mr-churn"))
			mr_churn(&rc);
		else if (!strcmp(what, "qp-churn"))
			qp_churn(&rc);
		else if (!strcmp(what, "qp-leak"))
			qp_leak(&rc);
		else if (!strcmp(what, "memlock"))
			failed += memlock(&rc);
		else {
			fprintf(stderr, "misuse: %s is not known\n", what);
			return 2;
		}
		done++;
	}
	printf("done: %llu calls, %llu failed\n", done, failed);
	return 0;
}
