import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The Java side of the interoperability tests: Apache's own client, told what to do by arguments
 * `key=value`, telling what happens as JSON lines on standard output.
 */
public final class Peer {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            if (equals > 0) {
                options.put(argument.substring(0, equals), argument.substring(equals + 1));
            }
        }
        switch (arguments[0]) {
            case "create-topic":
                createTopic(options);
                break;
            case "produce":
                produce(options);
                break;
            case "consume":
                consume(options);
                break;
            case "crowd":
                crowd(options);
                break;
            case "poll":
                poll(options);
                break;
            case "transact":
                transact(options);
                break;
            case "request":
                request(options);
                break;
            case "reply":
                reply(options);
                break;
            default:
                throw new IllegalArgumentException(arguments[0]);
        }
        // Client threads that are no daemons would keep the process alive.
        System.exit(0);
    }

    private static synchronized void tell(String event, Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("at", System.currentTimeMillis());
        for (int i = 0; i < pairs.length; i += 2) {
            line.put((String) pairs[i], pairs[i + 1]);
        }
        System.out.println(JSON.toJSONString(line));
        System.out.flush();
    }

    private static void createTopic(Map<String, String> options) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(options.get("nameServer"));
        admin.start();
        int queues = Integer.parseInt(options.getOrDefault("queues", "8"));
        TopicConfig config = new TopicConfig(options.get("topic"), queues, queues, 6);
        admin.createAndUpdateTopicConfig(options.get("broker"), config);
        admin.shutdown();
        tell("created", "topic", options.get("topic"));
    }

    /** Signs requests if keys are given; the class has another module in each version. */
    private static RPCHook hook(Map<String, String> options) throws Exception {
        if (!options.containsKey("accessKey")) {
            return null;
        }
        String base = "org.apache.rocketmq.acl.common.";
        Class<?> credentials = Class.forName(base + "SessionCredentials");
        Object keys = credentials.getConstructor(String.class, String.class)
            .newInstance(options.get("accessKey"), options.get("secretKey"));
        return (RPCHook) Class.forName(base + "AclClientRPCHook")
            .getConstructor(credentials).newInstance(keys);
    }

    /** Sends `count` messages `<prefix><number>`, keys `k<number>`, tags by turns from `tags`. */
    private static void produce(Map<String, String> options) throws Exception {
        DefaultMQProducer producer =
            new DefaultMQProducer(options.get("group"), hook(options), isTraced(options), null);
        producer.setNamesrvAddr(options.get("nameServer"));
        if (options.containsKey("namespace")) {
            producer.setNamespace(options.get("namespace"));
        }
        producer.setSendMsgTimeout(10_000);
        producer.start();
        int count = Integer.parseInt(options.get("count"));
        String prefix = options.getOrDefault("prefix", "m-");
        String padding = "x".repeat(Integer.parseInt(options.getOrDefault("padding", "0")));
        String[] tags = options.getOrDefault("tags", "A").split(",");
        boolean batch = Boolean.parseBoolean(options.getOrDefault("batch", "false"));
        List<Message> waiting = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            byte[] body = (prefix + i + padding).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(options.get("topic"), tags[i % tags.length], "k" + i, body);
            message.putUserProperty("number", String.valueOf(i));
            if (batch) {
                waiting.add(message);
                continue;
            }
            tellSent(producer.send(message), prefix + i);
        }
        if (batch) {
            tellSent(producer.send(waiting), prefix);
        }
        tell("done");
        if (isTraced(options)) {
            // A shutdown waits half a second for what is to be traced, and drops the rest.
            waitForStop();
        }
        producer.shutdown();
    }

    /**
     * Sends `count` half messages of each outcome in `outcomes`, the body `<outcome>-<number>`, and
     * answers check-backs with `checked` until standard input says `stop` or ends.
     */
    private static void transact(Map<String, String> options) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(options.get("group"));
        producer.setNamesrvAddr(options.get("nameServer"));
        producer.setSendMsgTimeout(10_000);
        LocalTransactionState checked = LocalTransactionState.valueOf(options.getOrDefault("checked", "COMMIT_MESSAGE"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
                return LocalTransactionState.valueOf((String) outcome);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                tell("check", "body", new String(message.getBody(), StandardCharsets.UTF_8),
                    "topic", message.getTopic(), "tags", message.getTags(),
                    "transactionId", message.getTransactionId());
                return checked;
            }
        });
        producer.start();
        int count = Integer.parseInt(options.getOrDefault("count", "1"));
        for (String outcome : options.getOrDefault("outcomes", "").split(",")) {
            for (int i = 0; i < count && !outcome.isEmpty(); i++) {
                String body = outcome + "-" + i;
                Message message = new Message(options.get("topic"), "A", "k" + i, body.getBytes(StandardCharsets.UTF_8));
                tellSent(producer.sendMessageInTransaction(message, outcome), body);
            }
        }
        tell("started");
        waitForStop();
        producer.shutdown();
        tell("stopped");
    }

    /** Asks `count` times, and tells the answers. */
    private static void request(Map<String, String> options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group"));
        producer.setNamesrvAddr(options.get("nameServer"));
        producer.start();
        for (int i = 0; i < Integer.parseInt(options.get("count")); i++) {
            byte[] body = ("question-" + i).getBytes(StandardCharsets.UTF_8);
            Message answer = producer.request(new Message(options.get("topic"), "A", body), 30_000);
            tell("answer", "body", new String(answer.getBody(), StandardCharsets.UTF_8));
        }
        producer.shutdown();
    }

    /** Answers every request with `re: ` before its body until standard input says `stop` or ends. */
    private static void reply(Map<String, String> options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.get("group") + "_replies");
        producer.setNamesrvAddr(options.get("nameServer"));
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("nameServer"));
        consumer.setPullInterval(0);
        consumer.subscribe(options.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = "re: " + new String(message.getBody(), StandardCharsets.UTF_8);
                try {
                    Message answer = MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8));
                    tell("replied", "status", producer.send(answer, 10_000).getSendStatus().name());
                } catch (Exception e) {
                    tell("failed", "reason", e.toString());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        tell("started");
        waitForStop();
        consumer.shutdown();
        producer.shutdown();
        tell("stopped");
    }

    private static boolean isTraced(Map<String, String> options) {
        return Boolean.parseBoolean(options.getOrDefault("trace", "false"));
    }

    private static void tellSent(SendResult result, String body) {
        tell("sent", "body", body, "status", result.getSendStatus().name(),
            "msgId", result.getMsgId(), "offsetMsgId", result.getOffsetMsgId(),
            "broker", result.getMessageQueue().getBrokerName(),
            "queueId", result.getMessageQueue().getQueueId(), "offset", result.getQueueOffset());
    }

    /** Runs a push consumer until standard input says `stop` or ends. */
    private static void consume(Map<String, String> options) throws Exception {
        String topic = options.get("topic");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.get("group"), hook(options), new AllocateMessageQueueAveragely(),
            isTraced(options), null);
        consumer.setNamesrvAddr(options.get("nameServer"));
        consumer.setAllocateMessageQueueStrategy(strategy(options));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (options.containsKey("clientRebalance")) {
            // Of 5.x alone.
            consumer.getClass().getMethod("setClientRebalance", boolean.class)
                .invoke(consumer, Boolean.parseBoolean(options.get("clientRebalance")));
        }
        if (options.containsKey("namespace")) {
            consumer.setNamespace(options.get("namespace"));
        }
        if (options.containsKey("instance")) {
            consumer.setInstanceName(options.get("instance"));
        }
        if (options.containsKey("clientIp")) {
            consumer.setClientIP(options.get("clientIp"));
        }
        if (options.containsKey("clientIP")) {
            consumer.setClientIP(options.get("clientIP"));
        }
        if (options.containsKey("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql(options.get("sql")));
        } else {
            consumer.subscribe(topic, options.getOrDefault("expression", "*"));
        }
        // Messages whose body begins so are refused at their first `failTimes` deliveries.
        String failPrefix = options.get("failPrefix");
        int failTimes = Integer.parseInt(options.getOrDefault("failTimes", "1"));
        int delayLevel = Integer.parseInt(options.getOrDefault("delayLevel", "1"));
        long workMs = Long.parseLong(options.getOrDefault("workMs", "0"));
        if (Boolean.parseBoolean(options.getOrDefault("orderly", "false"))) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                tellMessages(messages, failPrefix, failTimes)
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(delayLevel);
                boolean ok = tellMessages(messages, failPrefix, failTimes);
                LockSupport.parkNanos(workMs * 1_000_000);
                return ok
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        tell("starting");
        consumer.start();
        tell("started", "clientId", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        watch(List.of(consumer), topic);
        waitForStop();
        tell("stopping");
        consumer.shutdown();
        tell("stopped");
    }

    /** Runs `count` push consumers until standard input ends; tells the queues of all of them. */
    private static void crowd(Map<String, String> options) throws Exception {
        String topic = options.get("topic");
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(options.get("count")); i++) {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.get("group"));
            consumer.setNamesrvAddr(options.get("nameServer"));
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setInstanceName(String.format("crowd-%05d", i));
            consumer.setConsumeThreadMin(1);
            consumer.setConsumeThreadMax(1);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
            consumer.start();
            consumers.add(consumer);
        }
        tell("started");
        watch(consumers, topic);
        waitForStop();
    }

    /** Runs a lite pull consumer until standard input says `stop` or ends. */
    private static void poll(Map<String, String> options) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.get("group"));
        consumer.setNamesrvAddr(options.get("nameServer"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.get("topic"), "*");
        consumer.start();
        tell("started");
        Thread poller = new Thread(() -> {
            while (!Thread.currentThread().isInterrupted()) {
                tellMessages(consumer.poll(100), null, 0);
            }
        });
        poller.setDaemon(true);
        poller.start();
        waitForStop();
        poller.interrupt();
        poller.join(5_000);
        consumer.commitSync();
        consumer.shutdown();
        tell("stopped");
    }

    private static boolean tellMessages(List<MessageExt> messages, String failPrefix, int failTimes) {
        boolean ok = true;
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            boolean fails = failPrefix != null && body.startsWith(failPrefix)
                && message.getReconsumeTimes() < failTimes;
            tell("message", "at", System.currentTimeMillis(), "body", body, "topic", message.getTopic(),
                "broker", message.getBrokerName(), "queueId", message.getQueueId(),
                "offset", message.getQueueOffset(), "msgId", message.getMsgId(),
                "tags", message.getTags(), "keys", message.getKeys(),
                "number", message.getUserProperty("number"),
                "transactionId", message.getTransactionId(),
                "reconsumeTimes", message.getReconsumeTimes(), "ok", !fails);
            ok = ok && !fails;
        }
        return ok;
    }

    private static void watch(List<DefaultMQPushConsumer> consumers, String topic) {
        Thread watcher = new Thread(() -> tellAssignments(consumers, topic));
        watcher.setDaemon(true);
        watcher.start();
    }

    private static void tellAssignments(List<DefaultMQPushConsumer> consumers, String topic) {
        List<String> last = null;
        while (true) {
            List<MessageQueue> queues = new ArrayList<>();
            for (DefaultMQPushConsumer consumer : consumers) {
                Map<MessageQueue, ProcessQueue> table = consumer.getDefaultMQPushConsumerImpl()
                    .getRebalanceImpl().getProcessQueueTable();
                for (Map.Entry<MessageQueue, ProcessQueue> entry : table.entrySet()) {
                    if (entry.getKey().getTopic().equals(topic) && !entry.getValue().isDropped()) {
                        queues.add(entry.getKey());
                    }
                }
            }
            Collections.sort(queues);
            List<String> now = new ArrayList<>();
            for (MessageQueue queue : queues) {
                now.add(queue.getBrokerName() + ":" + queue.getQueueId());
            }
            if (!now.equals(last)) {
                tell("assignment", "queues", now);
                last = now;
            }
            try {
                Thread.sleep(2);
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    private static void waitForStop() throws IOException {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String line = input.readLine();
        while (line != null && !line.equals("stop")) {
            line = input.readLine();
        }
    }

    /** CONFIG takes `queues=broker:id,...`, MACHINE_ROOM `rooms=room,...`. */
    private static AllocateMessageQueueStrategy strategy(Map<String, String> options) {
        switch (options.getOrDefault("strategy", "AVG")) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "CONFIG": {
                List<MessageQueue> queues = new ArrayList<>();
                for (String name : options.get("queues").split(",")) {
                    String[] parts = name.split(":");
                    queues.add(new MessageQueue(options.get("topic"), parts[0], Integer.parseInt(parts[1])));
                }
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(queues);
                return config;
            }
            case "MACHINE_ROOM": {
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(Arrays.asList(options.get("rooms").split(","))));
                return rooms;
            }
            case "MACHINE_ROOM_NEARBY-AVG":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new PrefixResolver());
            default:
                throw new IllegalArgumentException(options.get("strategy"));
        }
    }

    /** The room is what stands before the first `-`. */
    private static final class PrefixResolver implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("-")[0];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.split("-")[0];
        }
    }
}
