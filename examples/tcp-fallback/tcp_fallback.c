/* Moves data by TCP as a job does whose communication library found no RDMA.
 *
 *   tcp-fallback [-n LIBRARY] [-t SECONDS]
 *
 *   -n  name of the library that it seems to have loaded [libnccl.so.2]
 *   -t  ends after so many seconds
 *
 * NCCL says so once, in its log ("NET/Socket"), and then all is as it should be, only slowly. This program needs no NCCL and
 * no RDMA device: it maps a file of that name, and two threads of it move data over a connection between two ports that the
 * kernel chose.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 256 << 10 };

static volatile sig_atomic_t over;

static void stop(int signal)
{
	(void)signal;
	over = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* Maps an empty file of this name; the mapping keeps the name when the file is gone. */
static void map_library(const char *name)
{
	char dir[] = "/tmp/tcp-fallback-XXXXXX", path[128];
	int fd;

	if (!mkdtemp(dir))
		die("mkdtemp");
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || ftruncate(fd, 4096) ||
	    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED)
		die(path);
	close(fd);
	unlink(path);
	rmdir(dir);
}

static void *receive(void *socket)
{
	static char buffer[CHUNK];

	while (recv(*(int *)socket, buffer, sizeof(buffer), 0) > 0)
		;
	return NULL;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	const char *library = "libnccl.so.2";
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sigaction action = { .sa_handler = stop };
	socklen_t length = sizeof(address);
	static char buffer[CHUNK];
	unsigned long long sent = 0, before = 0;
	unsigned seconds = 0;
	int option, listener, to, from;
	pthread_t receiver;
	double last;

	while ((option = getopt(argc, argv, "n:t:")) != -1) {
		if (option == 'n' && !strchr(optarg, '/') && strlen(optarg) < 64)
			library = optarg;
		else if (option == 't')
			seconds = (unsigned)atoi(optarg);
		else
			argc = 0;
	}
	if (argc != optind) {
		fprintf(stderr, "usage: tcp-fallback [-n LIBRARY] [-t SECONDS]\n");
		return 2;
	}
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGALRM, &action, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(seconds);
	map_library(library);

	listener = socket(AF_INET, SOCK_STREAM, 0);
	to = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || to < 0 || bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) ||
	    connect(to, (struct sockaddr *)&address, length))
		die("connect");
	from = accept(listener, NULL, NULL);
	if (from < 0 || pthread_create(&receiver, NULL, receive, &from))
		die("accept");
	printf("tcp-fallback: PID %d, %s is mapped, data goes by TCP to 127.0.0.1:%d\n", getpid(), library,
	       ntohs(address.sin_port));
	last = now();
	while (!over) {
		ssize_t part = send(to, buffer, sizeof(buffer), MSG_NOSIGNAL);

		if (part < 0 && errno != EINTR)
			die("send");
		sent += part > 0 ? (unsigned long long)part : 0;
		if (now() - last >= 1) {
			printf("%.1f Gb/s by TCP\n", (double)(sent - before) * 8e-9 / (now() - last));
			before = sent;
			last = now();
		}
	}
	shutdown(to, SHUT_WR);
	pthread_join(receiver, NULL);
	printf("done: %llu bytes\n", sent);
	return 0;
}
