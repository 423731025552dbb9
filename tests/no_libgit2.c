/* Criterion starts libgit2 for every case, which then reads the system's
 * certificates, two thirds of a short case's time. It is for differences of files,
 * which no case asks for. These take the place of libgit2's functions. */
int git_libgit2_init(void);
int git_libgit2_shutdown(void);

int git_libgit2_init(void) { return 1; }
int git_libgit2_shutdown(void) { return 0; }
