/* visitor.c: see visitor.h. Owns the visitors and their connections. */
#include "control/visitor.h"

#include "base/error.h"
#include "control/word.h"

#include <errno.h>
#include <sys/epoll.h>

static void enlist(slc_visitor_list *list, slc_visitor *visitor)
{
    visitor->next = NULL;
    visitor->previous = list->last;
    if (list->last == NULL)
        list->first = visitor;
    else
        list->last->next = visitor;
    list->last = visitor;
    list->count++;
}

static void strike(slc_visitor_list *list, slc_visitor *visitor)
{
    if (visitor->previous == NULL)
        list->first = visitor->next;
    else
        visitor->previous->next = visitor->next;
    if (visitor->next == NULL)
        list->last = visitor->previous;
    else
        visitor->next->previous = visitor->previous;
    list->count--;
}

sluice_status slc_visitors_add(slc_visitors *visitors, slc_channel *channel, slc_deadline until, slc_visitor **visitor, sluice_error *error)
{
    *visitor = NULL;
    slc_visitor *made = slc_allocate_zeroed(1, sizeof *made);
    if (made == NULL) {
        slc_channel_close(channel);
        return slc_fail_memory(error, "rendezvous", "a connection", sizeof *made);
    }
    struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = made };
    if (epoll_ctl(visitors->poller, EPOLL_CTL_ADD, slc_channel_fd(channel), &event) < 0) {
        sluice_status status = slc_fail_errno(error, errno, "rendezvous", "cannot watch a connection");
        slc_channel_close(channel);
        slc_release(made);
        return status;
    }
    made->kind = SLC_STRANGER;
    made->channel = channel;
    made->until = until;
    enlist(&visitors->list[SLC_STRANGER], made);
    *visitor = made;
    return SLUICE_OK;
}

void slc_visitor_becomes(slc_visitors *visitors, slc_visitor *visitor, slc_visitor_kind kind, slc_deadline until)
{
    strike(&visitors->list[visitor->kind], visitor);
    visitor->kind = kind;
    visitor->until = until;
    enlist(&visitors->list[kind], visitor);
}

slc_channel *slc_visitor_release(slc_visitors *visitors, slc_visitor *visitor)
{
    slc_channel *channel = visitor->channel;
    if (channel != NULL)
        epoll_ctl(visitors->poller, EPOLL_CTL_DEL, slc_channel_fd(channel), NULL);
    visitor->channel = NULL;
    return channel;
}

void slc_visitor_hang_up(slc_visitors *visitors, slc_visitor *visitor)
{
    slc_channel_close(slc_visitor_release(visitors, visitor));
}

void slc_visitor_refuse(slc_visitors *visitors, slc_visitor *visitor, const sluice_error *why)
{
    if (visitor->channel != NULL) {
        slc_buffer bytes = { 0 };
        size_t left;
        slc_word_write_error(&bytes, why);
        if (slc_channel_peer_version(visitor->channel) != 0)
            slc_channel_speak(visitor->channel, slc_channel_peer_version(visitor->channel));
        if (!bytes.failed && slc_channel_put(visitor->channel, SLC_FRAME_REFUSE, 0, bytes.data, bytes.length, NULL) == SLUICE_OK)
            slc_channel_flush(visitor->channel, &left, NULL);
        slc_buffer_clear(&bytes);
    }
    slc_visitor_hang_up(visitors, visitor);
}

void slc_visitor_drop(slc_visitors *visitors, slc_visitor *visitor)
{
    slc_visitor_hang_up(visitors, visitor);
    strike(&visitors->list[visitor->kind], visitor);
    visitor->next = visitors->gone;
    visitors->gone = visitor;
}

void slc_visitors_sweep(slc_visitors *visitors)
{
    while (visitors->gone != NULL) {
        slc_visitor *visitor = visitors->gone;
        visitors->gone = visitor->next;
        slc_release(visitor->who);
        slc_release(visitor);
    }
}

void slc_visitors_clear(slc_visitors *visitors)
{
    for (int kind = 0; kind < SLC_VISITOR_KINDS; kind++)
        while (visitors->list[kind].first != NULL)
            slc_visitor_drop(visitors, visitors->list[kind].first);
    slc_visitors_sweep(visitors);
}
