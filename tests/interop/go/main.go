// Apache's Go client, as its users use it: `peer nameServer=HOST:PORT check=sync topic=NAME ...`.
//
// Each check is a function that returns what went wrong. What was found is told as one line of
// JSON; the topic of each check is there before.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The client looks for the retry topic of its group every 30 s.
const waitFor = 100 * time.Second

var (
	options     = map[string]string{}
	clientCount = 0
	every       = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	checks      = map[string]func(topic string) error{
		"sync": sendSync, "async": sendAsync, "one-way": sendOneWay, "batch": sendBatch,
		"compressed": sendCompressed, "selector": selectQueue, "orderly": consumeInOrder,
		"delay": delay, "commit": commit, "rollback": rollback, "check-back": checkBack,
		"request-reply": requestReply, "tags": filterByTags, "sql92": filterBySQL,
		"broadcast": broadcast, "resume": resume, "retry": retry, "dead-letters": deadLetters,
		"pull": pull, "poll": poll, "trace": trace, "namespace": namespace, "topics": topics,
		"refused": refused,
	}
)

func main() {
	for _, pair := range os.Args[1:] {
		name, value, _ := strings.Cut(pair, "=")
		options[name] = value
	}
	rlog.SetLogLevel("error")
	rlog.SetOutputPath(options["log"])
	err := checks[options["check"]](options["topic"])
	told := map[string]interface{}{"event": "checked", "failure": nil}
	if err != nil {
		told["failure"] = err.Error()
	}
	line, _ := json.Marshal(told)
	fmt.Println(string(line))
	os.Exit(0)
}

func servers() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{options["nameServer"]})
}

func keys() primitive.Credentials {
	return primitive.Credentials{AccessKey: options["accessKey"], SecretKey: options["secretKey"]}
}

// Clients of one instance name share their connections and their client id.
func instance() string {
	clientCount++
	return fmt.Sprintf("go-%d-%d", os.Getpid(), clientCount)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func startProducer(more ...producer.Option) rocketmq.Producer {
	started, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNsResolver(servers()), producer.WithGroupName("GID_go_producer"),
		producer.WithInstanceName(instance()), producer.WithCredentials(keys()),
		producer.WithRetry(1),
	}, more...)...)
	must(err)
	must(started.Start())
	return started
}

// got is what consumers were given so far.
type got struct {
	sync.Mutex
	messages []*primitive.MessageExt
}

func (g *got) add(messages []*primitive.MessageExt) {
	g.Lock()
	defer g.Unlock()
	g.messages = append(g.messages, messages...)
}

func (g *got) all() []*primitive.MessageExt {
	g.Lock()
	defer g.Unlock()
	return append([]*primitive.MessageExt{}, g.messages...)
}

func (g *got) bodies() []string {
	found := []string{}
	for _, message := range g.all() {
		found = append(found, string(message.Body))
	}
	sort.Strings(found)
	return found
}

func until(what string, isSo func() bool) error {
	for deadline := time.Now().Add(waitFor); time.Now().Before(deadline); {
		if isSo() {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("no %s within %s", what, waitFor)
}

// Wait until these bodies have come, each once, and see that no other comes.
func (g *got) expect(bodies []string) error {
	sort.Strings(bodies)
	if err := until("all messages", func() bool { return len(g.all()) >= len(bodies) }); err != nil {
		return fmt.Errorf("%w: got %v", err, g.bodies())
	}
	time.Sleep(500 * time.Millisecond)
	if fmt.Sprint(bodies) != fmt.Sprint(g.bodies()) {
		return fmt.Errorf("expected %v, got %v", bodies, g.bodies())
	}
	return nil
}

type listener = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func listen(topic string, selector consumer.MessageSelector, heard listener,
	more ...consumer.Option) rocketmq.PushConsumer {
	started, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNsResolver(servers()), consumer.WithGroupName("GID_" + topic),
		consumer.WithInstance(instance()), consumer.WithCredentials(keys()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)...)
	must(err)
	must(started.Subscribe(topic, selector, heard))
	must(started.Start())
	return started
}

func consume(topic string, more ...consumer.Option) (*got, rocketmq.PushConsumer) {
	return consumeSome(topic, every, more...)
}

func consumeSome(topic string, selector consumer.MessageSelector,
	more ...consumer.Option) (*got, rocketmq.PushConsumer) {
	found := &got{}
	return found, listen(topic, selector, func(_ context.Context,
		messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		found.add(messages)
		return consumer.ConsumeSuccess, nil
	}, more...)
}

func numbered(topic string, count int) ([]*primitive.Message, []string) {
	messages, bodies := []*primitive.Message{}, []string{}
	for number := 0; number < count; number++ {
		bodies = append(bodies, fmt.Sprintf("m-%d", number))
		messages = append(messages, primitive.NewMessage(topic, []byte(bodies[number])))
	}
	return messages, bodies
}

func send(from rocketmq.Producer, messages ...*primitive.Message) (*primitive.SendResult, error) {
	result, err := from.SendSync(context.Background(), messages...)
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("answered %v", result.Status)
	}
	return result, err
}

func sendEach(from rocketmq.Producer, messages []*primitive.Message) error {
	for _, message := range messages {
		if _, err := send(from, message); err != nil {
			return err
		}
	}
	return nil
}

// Each message keeps its id, place, keys, tags and properties.
func sendSync(topic string) error {
	from := startProducer()
	messages, bodies := numbered(topic, 40)
	places := map[string]string{}
	for number, message := range messages {
		message.WithKeys([]string{fmt.Sprint("key", number)}).WithTag("T")
		message.WithProperty("number", fmt.Sprint(number))
		result, err := send(from, message)
		if err != nil {
			return err
		}
		places[bodies[number]] = fmt.Sprint(result.MsgID, result.OffsetMsgID,
			result.MessageQueue.QueueId, result.QueueOffset, "key", number, "T", number)
	}
	found, member := consume(topic)
	defer member.Shutdown()
	if err := found.expect(bodies); err != nil {
		return err
	}
	for _, message := range found.all() {
		place := fmt.Sprint(message.MsgId, message.OffsetMsgId, message.Queue.QueueId,
			message.QueueOffset, message.GetKeys(), message.GetTags(),
			message.GetProperty("number"))
		expected := places[string(message.Body)]
		if strings.ReplaceAll(place, " ", "") != strings.ReplaceAll(expected, " ", "") {
			return fmt.Errorf("sent as %s, came as %s", expected, place)
		}
	}
	return nil
}

func sendAsync(topic string) error {
	from := startProducer()
	messages, bodies := numbered(topic, 100)
	var wait sync.WaitGroup
	failures := make(chan error, len(messages))
	for _, message := range messages {
		wait.Add(1)
		must(from.SendAsync(context.Background(),
			func(_ context.Context, result *primitive.SendResult, err error) {
				if err == nil && result.Status != primitive.SendOK {
					err = fmt.Errorf("answered %v", result.Status)
				}
				if err != nil {
					failures <- err
				}
				wait.Done()
			}, message))
	}
	wait.Wait()
	if len(failures) > 0 {
		return <-failures
	}
	found, member := consume(topic)
	defer member.Shutdown()
	return found.expect(bodies)
}

func sendOneWay(topic string) error {
	from := startProducer()
	messages, bodies := numbered(topic, 20)
	for _, message := range messages {
		if err := from.SendOneWay(context.Background(), message); err != nil {
			return err
		}
	}
	found, member := consume(topic)
	defer member.Shutdown()
	return found.expect(bodies)
}

func sendBatch(topic string) error {
	from := startProducer()
	messages, bodies := numbered(topic, 20)
	for _, message := range messages {
		message.WithTag("batched")
	}
	result, err := send(from, messages...)
	if err != nil {
		return err
	}
	if ids := strings.Split(result.OffsetMsgID, ","); len(ids) != 20 {
		return fmt.Errorf("20 messages were answered by ids %v", ids)
	}
	found, member := consumeSome(topic, consumer.MessageSelector{
		Type: consumer.TAG, Expression: "batched"})
	defer member.Shutdown()
	return found.expect(bodies)
}

func sendCompressed(topic string) error {
	from := startProducer()
	body := strings.Repeat("compress me ", 10_000)
	if _, err := send(from, primitive.NewMessage(topic, []byte(body))); err != nil {
		return err
	}
	found, member := consume(topic)
	defer member.Shutdown()
	return found.expect([]string{body})
}

func selectQueue(topic string) error {
	from := startProducer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	route, err := admin.NewAdmin(admin.WithResolver(servers()), admin.WithCredentials(keys()))
	must(err)
	queues, err := route.FetchPublishMessageQueues(context.Background(), topic)
	if err != nil || len(queues) != 4 {
		return fmt.Errorf("queues %v, %v", queues, err)
	}
	messages, bodies := numbered(topic, 10)
	for _, message := range messages {
		message.Queue = queues[2]
	}
	if err := sendEach(from, messages); err != nil {
		return err
	}
	found, member := consume(topic)
	defer member.Shutdown()
	if err := found.expect(bodies); err != nil {
		return err
	}
	for _, message := range found.all() {
		if message.Queue.QueueId != queues[2].QueueId {
			return fmt.Errorf("%s came from queue %d", message.Body, message.Queue.QueueId)
		}
	}
	return nil
}

func consumeInOrder(topic string) error {
	from := startProducer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	messages, bodies := numbered(topic, 60)
	for number, message := range messages {
		message.WithShardingKey(fmt.Sprint("order-", number%5))
	}
	if err := sendEach(from, messages); err != nil {
		return err
	}
	found := &got{}
	failed := false
	member := listen(topic, every, func(_ context.Context,
		heard ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		// One fails once: it comes again before what follows it.
		if string(heard[0].Body) == "m-10" && !failed {
			failed = true
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		found.add(heard)
		return consumer.ConsumeSuccess, nil
	}, consumer.WithConsumerOrder(true), consumer.WithMaxReconsumeTimes(5))
	defer member.Shutdown()
	if err := found.expect(bodies); err != nil {
		return err
	}
	last := map[string]int{}
	for _, message := range found.all() {
		var number int
		fmt.Sscanf(string(message.Body), "m-%d", &number)
		key := message.GetShardingKey()
		if before, is := last[key]; is && before > number {
			return fmt.Errorf("of %s, %d came after %d", key, number, before)
		}
		last[key] = number
	}
	return nil
}

func delay(topic string) error {
	found, member := consume(topic)
	defer member.Shutdown()
	from := startProducer()
	message := primitive.NewMessage(topic, []byte("late")).WithDelayTimeLevel(2)
	sent := time.Now()
	if _, err := send(from, message); err != nil {
		return err
	}
	if err := until("message", func() bool { return len(found.all()) > 0 }); err != nil {
		return err
	}
	if took := time.Since(sent); took < 4_900*time.Millisecond || took > 8*time.Second {
		return fmt.Errorf("level 2, 5 s, took %s", took)
	}
	return found.expect([]string{"late"})
}

// outcome decides at once, or when it is asked.
type outcome struct {
	atOnce, asked primitive.LocalTransactionState
	checks        chan string
}

func (o outcome) ExecuteLocalTransaction(*primitive.Message) primitive.LocalTransactionState {
	return o.atOnce
}

func (o outcome) CheckLocalTransaction(half *primitive.MessageExt) primitive.LocalTransactionState {
	o.checks <- string(half.Body)
	return o.asked
}

func transact(topic string, decides outcome) (*got, rocketmq.PushConsumer, error) {
	decides.checks = make(chan string, 100)
	from, err := rocketmq.NewTransactionProducer(decides, producer.WithNsResolver(servers()),
		producer.WithGroupName("GID_go_"+topic), producer.WithInstanceName(instance()),
		producer.WithCredentials(keys()))
	must(err)
	must(from.Start())
	found, member := consume(topic)
	result, err := from.SendMessageInTransaction(context.Background(),
		primitive.NewMessage(topic, []byte("whole")))
	if err == nil && (result.Status != primitive.SendOK || result.State != decides.atOnce) {
		err = fmt.Errorf("answered %v", result)
	}
	if err == nil && decides.atOnce == primitive.UnknowState {
		select {
		case body := <-decides.checks:
			if body != "whole" {
				err = fmt.Errorf("asked about %s", body)
			}
		case <-time.After(waitFor):
			err = errors.New("the broker did not ask")
		}
	}
	return found, member, err
}

func commit(topic string) error {
	found, member, err := transact(topic, outcome{atOnce: primitive.CommitMessageState})
	defer member.Shutdown()
	if err != nil {
		return err
	}
	return found.expect([]string{"whole"})
}

func rollback(topic string) error {
	found, member, err := transact(topic, outcome{atOnce: primitive.RollbackMessageState})
	defer member.Shutdown()
	if err != nil {
		return err
	}
	// What is sent behind it comes; it does not.
	if err := sendEach(startProducer(), []*primitive.Message{
		primitive.NewMessage(topic, []byte("behind"))}); err != nil {
		return err
	}
	return found.expect([]string{"behind"})
}

func checkBack(topic string) error {
	found, member, err := transact(topic,
		outcome{atOnce: primitive.UnknowState, asked: primitive.CommitMessageState})
	defer member.Shutdown()
	if err != nil {
		return err
	}
	return found.expect([]string{"whole"})
}

func requestReply(topic string) error {
	replier := startProducer(producer.WithGroupName("GID_go_replier"))
	member := listen(topic, every, func(_ context.Context,
		heard ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range heard {
			reply, err := consumer.CreateReplyMessage(message, nil)
			if err == nil {
				// CreateReplyMessage of 2.1.2 takes a body, and loses it.
				reply.Body = append([]byte("re: "), message.Body...)
				_, err = replier.SendSync(context.Background(), reply)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "no reply:", err)
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	defer member.Shutdown()
	asker := startProducer(producer.WithGroupName("GID_go_asker"))
	// This client makes itself known to the brokers once it has sent.
	if _, err := send(asker, primitive.NewMessage(options["other"], []byte("hello"))); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	reply, err := asker.Request(context.Background(), 10*time.Second,
		primitive.NewMessage(topic, []byte("question")))
	if err != nil {
		return err
	}
	if string(reply.Body) != "re: question" {
		return fmt.Errorf("the reply is %q", reply.Body)
	}
	return nil
}

func filterByTags(topic string) error {
	from := startProducer()
	messages, _ := numbered(topic, 9)
	for number, message := range messages {
		message.WithTag(string(rune('A' + number%3)))
	}
	if err := sendEach(from, messages); err != nil {
		return err
	}
	found, member := consumeSome(topic, consumer.MessageSelector{
		Type: consumer.TAG, Expression: "A || C"})
	defer member.Shutdown()
	return found.expect([]string{"m-0", "m-2", "m-3", "m-5", "m-6", "m-8"})
}

func filterBySQL(topic string) error {
	from := startProducer()
	messages, _ := numbered(topic, 9)
	for number, message := range messages {
		message.WithProperty("number", fmt.Sprint(number))
	}
	if err := sendEach(from, messages); err != nil {
		return err
	}
	found, member := consumeSome(topic, consumer.MessageSelector{
		Type: consumer.SQL92, Expression: "number BETWEEN 3 AND 5 OR number = 8"})
	defer member.Shutdown()
	return found.expect([]string{"m-3", "m-4", "m-5", "m-8"})
}

func broadcast(topic string) error {
	everybody := consumer.WithConsumerModel(consumer.BroadCasting)
	one, first := consume(topic, everybody)
	defer first.Shutdown()
	other, second := consume(topic, everybody)
	defer second.Shutdown()
	messages, bodies := numbered(topic, 12)
	if err := sendEach(startProducer(), messages); err != nil {
		return err
	}
	if err := one.expect(bodies); err != nil {
		return err
	}
	return other.expect(bodies)
}

// Who comes next in a group begins where the last one ended.
func resume(topic string) error {
	from := startProducer()
	early, bodies := numbered(topic, 12)
	if err := sendEach(from, early); err != nil {
		return err
	}
	found, member := consume(topic)
	if err := found.expect(bodies); err != nil {
		return err
	}
	must(member.Shutdown())
	if _, err := send(from, primitive.NewMessage(topic, []byte("late"))); err != nil {
		return err
	}
	rest, next := consume(topic)
	defer next.Shutdown()
	return rest.expect([]string{"late"})
}

func failing(topic string, times int32) (*got, rocketmq.PushConsumer) {
	found := &got{}
	return found, listen(topic, every, func(_ context.Context,
		heard ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		found.add(heard)
		if heard[0].ReconsumeTimes < times {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithMaxReconsumeTimes(1))
}

func retry(topic string) error {
	found, member := failing(topic, 1)
	defer member.Shutdown()
	if _, err := send(startProducer(), primitive.NewMessage(topic, []byte("again"))); err != nil {
		return err
	}
	if err := found.expect([]string{"again", "again"}); err != nil {
		return err
	}
	first, second := found.all()[0], found.all()[1]
	if first.ReconsumeTimes != 0 || second.ReconsumeTimes != 1 || second.Topic != topic {
		return fmt.Errorf("came %d and %d times again, of %s",
			first.ReconsumeTimes, second.ReconsumeTimes, second.Topic)
	}
	return nil
}

// The caller looks for it among the dead letters of the group.
func deadLetters(topic string) error {
	found, member := failing(topic, 100)
	defer member.Shutdown()
	if _, err := send(startProducer(), primitive.NewMessage(topic, []byte("dead"))); err != nil {
		return err
	}
	return found.expect([]string{"dead", "dead"})
}

func startPull(topic string) rocketmq.PullConsumer {
	started, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(servers()),
		consumer.WithGroupName("GID_"+topic), consumer.WithInstance(instance()),
		consumer.WithCredentials(keys()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	must(err)
	must(started.Subscribe(topic, every))
	must(started.Start())
	return started
}

func pull(topic string) error {
	messages, bodies := numbered(topic, 24)
	if err := sendEach(startProducer(), messages); err != nil {
		return err
	}
	route, err := admin.NewAdmin(admin.WithResolver(servers()), admin.WithCredentials(keys()))
	must(err)
	queues, err := route.FetchPublishMessageQueues(context.Background(), topic)
	if err != nil {
		return err
	}
	puller := startPull(topic)
	defer puller.Shutdown()
	found := &got{}
	for _, queue := range queues {
		for offset := int64(0); ; {
			result, err := puller.PullFrom(context.Background(), queue, offset, 4)
			if err != nil {
				return err
			}
			if result.Status != primitive.PullFound {
				break
			}
			found.add(result.GetMessageExts())
			offset = result.NextBeginOffset
			if offset >= result.MaxOffset {
				break
			}
		}
	}
	return found.expect(bodies)
}

func poll(topic string) error {
	messages, bodies := numbered(topic, 24)
	if err := sendEach(startProducer(), messages); err != nil {
		return err
	}
	puller := startPull(topic)
	defer puller.Shutdown()
	found := &got{}
	for deadline := time.Now().Add(waitFor); len(found.all()) < len(bodies); {
		if time.Now().After(deadline) {
			break
		}
		request, err := puller.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return err
		}
		found.add(request.GetMsgList())
		puller.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	return found.expect(bodies)
}

func trace(topic string) error {
	traced := &primitive.TraceConfig{
		Access: primitive.Local, Resolver: servers(), Credentials: keys(), GroupName: "GID_go_trace"}
	from := startProducer(producer.WithTrace(traced))
	result, err := send(from, primitive.NewMessage(topic, []byte("traced")))
	if err != nil {
		return err
	}
	found, member := consume(topic, consumer.WithTrace(traced))
	defer member.Shutdown()
	if err := found.expect([]string{"traced"}); err != nil {
		return err
	}
	traces, reader := consume("RMQ_SYS_TRACE_TOPIC")
	defer reader.Shutdown()
	return until("trace of sending and of consuming "+result.MsgID, func() bool {
		told := strings.Join(traces.bodies(), "\n")
		of := func(kind string) bool {
			for _, line := range strings.Split(told, "\x02") {
				if strings.HasPrefix(strings.TrimSpace(line), kind+"\x01") &&
					strings.Contains(line, result.MsgID) {
					return true
				}
			}
			return false
		}
		return of("Pub") && of("SubBefore") && of("SubAfter")
	})
}

// The caller has made the topic under its whole name, SPACE%NAME.
func namespace(topic string) error {
	from := startProducer(producer.WithNamespace("SPACE"))
	messages, bodies := numbered(topic, 8)
	if err := sendEach(from, messages); err != nil {
		return err
	}
	found, member := consume(topic, consumer.WithNamespace("SPACE"))
	defer member.Shutdown()
	return found.expect(bodies)
}

func topics(topic string) error {
	made := topic + "-made"
	tool, err := admin.NewAdmin(admin.WithResolver(servers()), admin.WithCredentials(keys()))
	must(err)
	defer tool.Close()
	listed := func() bool {
		list, err := tool.FetchAllTopicList(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return false
		}
		for _, each := range list.TopicList {
			if each == made {
				return true
			}
		}
		return false
	}
	must(tool.CreateTopic(context.Background(), admin.WithTopicCreate(made),
		admin.WithBrokerAddrCreate(options["broker"])))
	if err := until("topic in the list", listed); err != nil {
		return err
	}
	must(tool.DeleteTopic(context.Background(), admin.WithTopicDelete(made),
		admin.WithBrokerAddrDelete(options["broker"]),
		admin.WithNameSrvAddr([]string{options["nameServer"]})))
	return until("end of the topic", func() bool { return !listed() })
}

// A wrong key is refused, by name.
func refused(topic string) error {
	from := startProducer()
	_, err := send(from, primitive.NewMessage(topic, []byte("no")))
	if err == nil {
		return errors.New("a message was taken")
	}
	if !strings.Contains(err.Error(), options["remark"]) {
		return fmt.Errorf("refused by %q", err.Error())
	}
	return nil
}
