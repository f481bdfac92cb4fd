// The official Go client of RocketMQ 5: what it does is told in grpc_python/peer.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var lock sync.Mutex

func tell(fields map[string]any) {
	line, _ := json.Marshal(fields)
	lock.Lock()
	defer lock.Unlock()
	fmt.Println(string(line))
}

func got(by string, message *rocketmq.MessageView) string {
	body := string(message.GetBody())
	tell(map[string]any{"event": "got", "by": by, "body": body,
		"attempt": message.GetDeliveryAttempt(), "ms": time.Now().UnixMilli()})
	return body
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config(group string) *rocketmq.Config {
	keys := &credentials.SessionCredentials{}
	return &rocketmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: keys}
}

func push(by string, topics ...string) {
	all := map[string]*rocketmq.FilterExpression{}
	for _, topic := range topics {
		all[topic] = rocketmq.SUB_ALL
	}
	var seen sync.Map
	consume := func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
		body := got(by, message)
		_, isSeen := seen.LoadOrStore(body, true)
		if body == "poison" || (strings.HasPrefix(body, "fails") && !isSeen) {
			return rocketmq.FAILURE
		}
		return rocketmq.SUCCESS
	}
	consumer, err := rocketmq.NewPushConsumer(config("GID_"+by),
		rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushSubscriptionExpressions(all),
		rocketmq.WithPushConsumptionThreadCount(4),
		rocketmq.WithPushMaxCacheMessageCount(1024),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: consume}))
	check(err)
	check(consumer.Start())
}

func receive() {
	all := map[string]*rocketmq.FilterExpression{"T": rocketmq.SUB_ALL}
	consumer, err := rocketmq.NewSimpleConsumer(config("GID_simple"),
		rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(all))
	check(err)
	check(consumer.Start())
	for {
		messages, err := consumer.Receive(context.TODO(), 32, 15*time.Second)
		if err != nil {
			tell(map[string]any{"event": "failed", "what": "receive", "error": err.Error()})
			time.Sleep(500 * time.Millisecond)
		}
		for _, message := range messages {
			got("simple", message)
			if err := consumer.Ack(context.TODO(), message); err != nil {
				tell(map[string]any{"event": "failed", "what": "ack", "error": err.Error()})
			}
		}
	}
}

func send(producer rocketmq.Producer, message *rocketmq.Message) {
	_, err := producer.Send(context.TODO(), message)
	check(err)
}

func main() {
	rocketmq.EnableSsl = false
	push("push", "T", "T_delay", "T_transaction")
	push("fifo", "T_fifo")
	go receive()
	commit := func(*rocketmq.MessageView) rocketmq.TransactionResolution { return rocketmq.COMMIT }
	producer, err := rocketmq.NewProducer(config(""),
		rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: commit}),
		rocketmq.WithTopics("T", "T_delay", "T_fifo", "T_transaction"))
	check(err)
	check(producer.Start())
	for number := 0; number < 20; number++ {
		body := []byte(fmt.Sprintf("plain %d", number))
		message := &rocketmq.Message{Topic: "T", Body: body}
		message.SetTag("a")
		message.SetKeys(fmt.Sprintf("key-%d", number))
		send(producer, message)
	}
	send(producer, &rocketmq.Message{Topic: "T", Body: []byte("fails once")})
	send(producer, &rocketmq.Message{Topic: "T", Body: []byte("poison")})
	for number := 0; number < 10; number++ {
		name := "step %d"
		if number == 4 {
			name = "fails at step %d"
		}
		message := &rocketmq.Message{Topic: "T_fifo", Body: []byte(fmt.Sprintf(name, number))}
		message.SetMessageGroup("ride-7")
		send(producer, message)
	}
	due := time.Now().Truncate(time.Second).Add(3 * time.Second)
	late := &rocketmq.Message{Topic: "T_delay", Body: []byte(fmt.Sprintf("due %d", due.UnixMilli()))}
	late.SetDelayTimestamp(due)
	send(producer, late)
	for _, name := range []string{"committed", "rolled back", "undecided"} {
		transaction := producer.BeginTransaction()
		half := &rocketmq.Message{Topic: "T_transaction", Body: []byte(name)}
		_, err := producer.SendWithTransaction(context.TODO(), half, transaction)
		check(err)
		switch name {
		case "committed":
			check(transaction.Commit())
		case "rolled back":
			check(transaction.RollBack())
		}
	}
	tell(map[string]any{"event": "sent"})
	input := bufio.NewReader(os.Stdin)
	input.ReadString('\n')
	for number := 0; number < 10; number++ {
		body := []byte(fmt.Sprintf("later %d", number))
		end := time.Now().Add(time.Minute)
		for {
			_, err := producer.Send(context.TODO(), &rocketmq.Message{Topic: "T", Body: body})
			if err == nil {
				break
			}
			tell(map[string]any{"event": "failed", "what": "send", "error": err.Error()})
			if time.Now().After(end) {
				check(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
	}
	tell(map[string]any{"event": "sent"})
	input.ReadString('\n')
	os.Exit(0)
}
