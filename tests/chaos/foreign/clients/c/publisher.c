// Publishes numbered messages until its standard input ends; one line of JSON for each answer.
// What all four publishers do alike is in ../../programs.py.
#include <nats/nats.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PACE_MS = 10, PATIENCE_MS = 2500, PAUSE_MS = 100, TEXT_BYTES = 4096, SERVERS_MAX = 16 };

static void must(natsStatus status) {
    if (status == NATS_OK) return;
    nats_PrintLastErrorStack(stderr);
    exit(1);
}

static void quote(char *into, const char *text, int length) {
    *into++ = '"';
    for (int at = 0; at < length && at < TEXT_BYTES / 6; at++) {
        unsigned char byte = text[at];
        if (byte == '"' || byte == '\\' || byte < ' ') into += sprintf(into, "\\u%04x", byte);
        else *into++ = byte;
    }
    strcpy(into, "\"");
}

static void answered(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *closure) {
    const char *number = strrchr(natsMsg_GetSubject(msg), '.') + 1;
    char text[TEXT_BYTES];
    quote(text, natsMsg_GetData(msg), natsMsg_GetDataLength(msg));
    if (natsMsg_IsNoResponders(msg)) printf("{\"number\":%s,\"no_responders\":true}\n", number);
    else printf("{\"number\":%s,\"answer\":%s}\n", number, text);
    natsMsg_Destroy(msg);
}

// One attempt at a message with an id.
static bool stored(jsCtx *js, int number, const char *subject, const char *id,
                   const char *value) {
    jsPubAck *ack = NULL;
    jsPubOptions options;
    jsErrCode code = 0;
    char text[TEXT_BYTES];
    must(jsPubOptions_Init(&options));
    options.MaxWait = PATIENCE_MS;
    options.MsgId = id;
    natsStatus status = js_Publish(&ack, js, subject, value, (int) strlen(value), &options, &code);
    const char *why = status == NATS_OK ? ack->Stream
                      : code != 0 ? nats_GetLastError(NULL) : natsStatus_GetText(status);
    quote(text, why, (int) strlen(why));
    if (status == NATS_OK)
        printf("{\"number\":%d,\"stream\":%s,\"seq\":%llu,\"duplicate\":%s}\n", number, text,
               (unsigned long long) ack->Sequence, ack->Duplicate ? "true" : "false");
    else if (status == NATS_NO_RESPONDERS) printf("{\"number\":%d,\"no_responders\":true}\n", number);
    else if (code != 0)
        printf("{\"number\":%d,\"err_code\":%d,\"description\":%s}\n", number, code, text);
    else printf("{\"number\":%d,\"error\":%s}\n", number, text);
    jsPubAck_Destroy(ack);
    return status == NATS_OK;
}

static bool ended(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) > 0 && read(0, &byte, 1) <= 0;
}

int main(int count, char **arguments) {
    natsOptions *options = NULL;
    natsConnection *nc = NULL;
    natsSubscription *sub = NULL;
    jsCtx *js = NULL;
    char *inbox = NULL, pattern[256], reply[256], id[256], value[512];
    const char *urls[SERVERS_MAX];
    int number = 0, subjects = count - 3, servers = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    must(natsOptions_Create(&options));
    for (char *url = strtok(arguments[1], ","); url != NULL && servers < SERVERS_MAX;) {
        urls[servers++] = url;
        url = strtok(NULL, ",");
    }
    must(natsOptions_SetServers(options, urls, servers));
    must(natsOptions_SetMaxReconnect(options, -1));
    must(natsOptions_SetReconnectWait(options, PAUSE_MS));
    must(natsConnection_Connect(&nc, options));
    must(natsConnection_JetStream(&js, nc, NULL));
    must(natsInbox_Create(&inbox));
    snprintf(pattern, sizeof pattern, "%s.*", inbox);
    must(natsConnection_Subscribe(&sub, nc, pattern, answered, NULL));
    for (; !ended(); number++) {
        const char *subject = arguments[3 + number % subjects];
        nats_Sleep(PACE_MS);
        snprintf(id, sizeof id, "%s %d", subject, number);
        snprintf(value, sizeof value, "%s \u2603", id);
        snprintf(reply, sizeof reply, "%s.%d", inbox, number);
        if (strcmp(arguments[2], "once") == 0)
            must(natsConnection_PublishRequest(nc, subject, reply, value, (int) strlen(value)));
        else
            while (!stored(js, number, subject, id, value)) nats_Sleep(PAUSE_MS);
    }
    nats_Sleep(PATIENCE_MS);
    printf("{\"sent\":%d}\n", number);
    natsConnection_Destroy(nc);
}
