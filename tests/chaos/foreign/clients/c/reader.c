// Reads a stream by the JetStream API; one line of JSON for what it has found.
// What all readers do alike is in ../../reading.py.
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nats/nats.h>

#define PATIENCE_MS 30000

static jsOptions domain;

static void must(natsStatus status, const char *what) {
  if (status != NATS_OK) {
    fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(status));
    nats_PrintLastErrorStack(stderr);
    exit(1);
  }
}

#define MUST(call) must((call), #call)

static uint64_t sequence(natsMsg *message, uint64_t *delivered) {
  jsMsgMetaData *told = NULL;
  MUST(natsMsg_GetMetaData(&told, message));
  uint64_t found = told->Sequence.Stream;
  if (delivered != NULL) *delivered = told->NumDelivered;
  jsMsgMetaData_Destroy(told);
  return found;
}

static void say_sequences(const char *word, natsSubscription *sub, int count) {
  char text[1024];
  int length = snprintf(text, sizeof(text), "{\"%s\":[", word);
  for (int at = 0; at < count; at++) {
    natsMsg *message = NULL;
    MUST(natsSubscription_NextMsg(&message, sub, PATIENCE_MS));
    length += snprintf(text + length, sizeof(text) - length, "%s%" PRIu64, at ? "," : "",
                       sequence(message, NULL));
    natsMsg_Destroy(message);
  }
  printf("%s]}\n", text);
  MUST(natsSubscription_Unsubscribe(sub));
  natsSubscription_Destroy(sub);
}

static void ordered(jsCtx *js, const char *stream, const char *subject, const char *word,
                    int count) {
  natsSubscription *sub = NULL;
  jsSubOptions options;
  MUST(jsSubOptions_Init(&options));
  options.Ordered = true;
  options.Stream = stream;
  MUST(js_SubscribeSync(&sub, js, subject, &domain, &options, NULL));
  say_sequences(word, sub, count);
}

static natsSubscription *pulling(jsCtx *js, const char *stream, const char *durable,
                                 int64_t ack_wait, int64_t open_max) {
  natsSubscription *sub = NULL;
  jsSubOptions options;
  char subject[256];
  snprintf(subject, sizeof(subject), "%s.>", stream);
  MUST(jsSubOptions_Init(&options));
  options.Stream = stream;
  options.Config.AckPolicy = js_AckExplicit;
  options.Config.AckWait = ack_wait;
  options.Config.MaxAckPending = open_max;
  MUST(js_PullSubscribe(&sub, js, subject, durable, &domain, &options, NULL));
  return sub;
}

static void fetch(jsCtx *js, const char *stream) {
  natsSubscription *sub = pulling(js, stream, "c-fetch", 0, 0);
  natsMsgList taken, again;
  const char *header = NULL;
  uint64_t found[4], delivered;
  MUST(natsSubscription_Fetch(&taken, sub, 4, PATIENCE_MS, NULL));
  for (int at = 0; at < 4; at++) found[at] = sequence(taken.Msgs[at], NULL);
  MUST(natsMsgHeader_Get(taken.Msgs[1], "Number", &header));
  printf("{\"fetched\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "],\"subject\":\"%s\","
         "\"header\":\"%s\"}\n",
         found[0], found[1], found[2], found[3], natsMsg_GetSubject(taken.Msgs[1]), header);
  MUST(natsMsg_AckSync(taken.Msgs[0], NULL, NULL));
  MUST(natsMsg_Nak(taken.Msgs[1], NULL));
  MUST(natsMsg_Term(taken.Msgs[2], NULL));
  MUST(natsSubscription_Fetch(&again, sub, 1, PATIENCE_MS, NULL));
  found[0] = sequence(again.Msgs[0], &delivered);
  printf("{\"again\":%" PRIu64 ",\"delivered\":%" PRIu64 "}\n", found[0], delivered);
  MUST(natsMsg_AckSync(again.Msgs[0], NULL, NULL));
  MUST(natsMsg_AckSync(taken.Msgs[3], NULL, NULL));
  jsConsumerInfo *info = NULL;
  MUST(natsSubscription_GetConsumerInfo(&info, sub, &domain, NULL));
  printf("{\"floor\":%" PRIu64 ",\"open\":%" PRId64 ",\"pending\":%" PRIu64 "}\n",
         info->AckFloor.Stream, (int64_t)info->NumAckPending, info->NumPending);
  jsConsumerInfo_Destroy(info);
  natsMsgList_Destroy(&taken);
  natsMsgList_Destroy(&again);
  MUST(natsSubscription_Unsubscribe(sub));
  natsSubscription_Destroy(sub);
}

static void direct(jsCtx *js, const char *stream) {
  natsMsg *fifth = NULL, *last = NULL;
  char subject[256];
  snprintf(subject, sizeof(subject), "%s.b", stream);
  MUST(js_GetMsg(&fifth, js, stream, 5, &domain, NULL));
  MUST(js_GetLastMsg(&last, js, stream, subject, &domain, NULL));
  printf("{\"fifth\":\"%.*s\",\"last\":%" PRIu64 "}\n", natsMsg_GetDataLength(fifth),
         natsMsg_GetData(fifth), natsMsg_GetSequence(last));
  natsMsg_Destroy(fifth);
  natsMsg_Destroy(last);
}

static const char *truth(natsStatus status) { return status == NATS_OK ? "false" : "true"; }

static void bucket(jsCtx *js) {
  kvStore *kv = NULL;
  kvConfig config;
  kvWatcher *watcher = NULL;
  kvEntry *entry = NULL;
  kvKeysList keys;
  uint64_t put, created, updated, ignored;
  MUST(kvConfig_Init(&config));
  config.Bucket = "c";
  MUST(js_CreateKeyValue(&kv, js, &config));
  MUST(kvStore_WatchAll(&watcher, kv, NULL));
  MUST(kvStore_PutString(&put, kv, "colour", "blue"));
  MUST(kvStore_CreateString(&created, kv, "size", "1"));
  natsStatus twice = kvStore_CreateString(&ignored, kv, "size", "1");
  MUST(kvStore_UpdateString(&updated, kv, "size", "2", created));
  natsStatus stale = kvStore_UpdateString(&ignored, kv, "size", "3", created);
  MUST(kvStore_Get(&entry, kv, "size"));
  printf("{\"revisions\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "],\"value\":\"%s\"}\n", put, created,
         updated, kvEntry_ValueString(entry));
  kvEntry_Destroy(entry);
  MUST(kvStore_Delete(kv, "colour"));
  entry = NULL;
  natsStatus gone = kvStore_Get(&entry, kv, "colour");
  MUST(kvStore_Keys(&keys, kv, NULL));
  printf("{\"refused\":[%s,%s,%s],\"keys\":[", truth(twice), truth(stale), truth(gone));
  for (int at = 0; at < keys.Count; at++) printf("%s\"%s\"", at ? "," : "", keys.Keys[at]);
  printf("]}\n{\"watched\":[");
  kvKeysList_Destroy(&keys);
  for (int found = 0; found < 4;) {
    entry = NULL;
    MUST(kvWatcher_Next(&entry, watcher, PATIENCE_MS));
    if (entry == NULL) continue;
    printf("%s\"%s %" PRIu64 "\"", found ? "," : "", kvEntry_Key(entry), kvEntry_Revision(entry));
    kvEntry_Destroy(entry);
    found++;
  }
  printf("]}\n");
  kvWatcher_Destroy(watcher);
  kvStore_Destroy(kv);
  MUST(js_DeleteKeyValue(js, "c"));
}

static void followed(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *closure) {
  printf("{\"followed\":%" PRIu64 "}\n", sequence(message, NULL));
  natsMsg_Destroy(message);
}

static bool has_input(void) {
  struct pollfd input = {.fd = 0, .events = POLLIN};
  char byte;
  return poll(&input, 1, 0) == 0 || read(0, &byte, 1) == 1;
}

// Acknowledges each message of a durable consumer, and follows in order, until the input ends.
static void work(jsCtx *js, const char *stream) {
  natsSubscription *following = NULL, *sub = pulling(js, stream, "c-work", 10000000000, 1);
  jsSubOptions options;
  jsOptions soon = domain;
  char subject[256];
  snprintf(subject, sizeof(subject), "%s.>", stream);
  MUST(jsSubOptions_Init(&options));
  options.Ordered = true;
  options.Stream = stream;
  MUST(js_Subscribe(&following, js, subject, followed, NULL, &domain, &options, NULL));
  soon.Wait = 2000;
  printf("{\"ready\":true}\n");
  while (has_input()) {
    natsMsgList taken = {0};
    natsStatus status = natsSubscription_Fetch(&taken, sub, 1, 1000, NULL);
    if (status != NATS_OK && status != NATS_TIMEOUT)
      fprintf(stderr, "fetch: %s\n", natsStatus_GetText(status));
    for (int at = 0; at < taken.Count; at++) {
      uint64_t delivered, found = sequence(taken.Msgs[at], &delivered);
      if (found % 7 == 0 && delivered == 1) {
        natsMsg_Nak(taken.Msgs[at], NULL);
        continue;
      }
      natsStatus acked = natsMsg_AckSync(taken.Msgs[at], &soon, NULL);
      printf("{\"worked\":%" PRIu64 ",\"acked\":%s}\n", found, acked == NATS_OK ? "true" : "false");
    }
    natsMsgList_Destroy(&taken);
  }
}

int main(int argc, char **argv) {
  natsOptions *options = NULL;
  natsConnection *conn = NULL;
  jsCtx *js = NULL;
  if (argc != 4) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  MUST(natsOptions_Create(&options));
  MUST(natsOptions_SetURL(options, argv[1]));
  MUST(natsOptions_SetMaxReconnect(options, -1));
  MUST(natsOptions_SetReconnectWait(options, 100));
  MUST(natsConnection_Connect(&conn, options));
  MUST(jsOptions_Init(&domain));
  domain.Domain = "log";
  domain.Wait = PATIENCE_MS;
  MUST(natsConnection_JetStream(&js, conn, &domain));
  if (strcmp(argv[2], "work") == 0) {
    work(js, argv[3]);
    return 0;
  }
  char all[256], some[256];
  snprintf(all, sizeof(all), "%s.>", argv[3]);
  snprintf(some, sizeof(some), "%s.a", argv[3]);
  fetch(js, argv[3]);
  ordered(js, argv[3], all, "ordered", 20);
  direct(js, argv[3]);
  ordered(js, argv[3], some, "pushed", 10);
  bucket(js);
  return 0;
}
