/* door_place.h: the listening socket of a door, and where it lies. Private to control. */
#ifndef SLC_CONTROL_DOOR_PLACE_H
#define SLC_CONTROL_DOOR_PLACE_H

#include "sluice.h"

#include <sys/types.h>
#include <sys/un.h>

typedef struct slc_door_place {
    int fd;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of a file that is to be removed; "" for none */
    dev_t device;
    ino_t inode;
} slc_door_place;

/* As slc_door_open. On failure nothing is left, `fd` is closed. */
sluice_status slc_door_listen(const char *path, int fd, slc_door_place *place, sluice_error *error);
/* Closes the socket and removes its file, where that is still its own. */
void slc_door_leave(slc_door_place *place);

#endif
