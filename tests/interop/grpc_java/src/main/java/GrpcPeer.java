import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.io.grpc.StatusRuntimeException;

/** The official Java client of RocketMQ 5: what it does is told in grpc_python/peer.py. */
public final class GrpcPeer {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0]).enableSsl(false).build();
        push("push", "T", "T_delay", "T_transaction");
        push("fifo", "T_fifo");
        Thread receiver = new Thread(GrpcPeer::receive);
        receiver.setDaemon(true);
        receiver.start();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("T", "T_delay", "T_fifo", "T_transaction")
            .setTransactionChecker(message -> TransactionResolution.COMMIT).build();
        for (int number = 0; number < 20; number++) {
            producer.send(message("T", "plain " + number)
                .setTag("a").setKeys("key-" + number).build());
        }
        producer.send(message("T", "fails once").build());
        producer.send(message("T", "poison").build());
        for (int number = 0; number < 10; number++) {
            String name = (number == 4 ? "fails at step " : "step ") + number;
            producer.send(message("T_fifo", name).setMessageGroup("ride-7").build());
        }
        long due = System.currentTimeMillis() / 1000 * 1000 + 3000;
        producer.send(message("T_delay", "due " + due).setDeliveryTimestamp(due).build());
        SendReceipt recalled =
            producer.send(message("T_delay", "recalled").setDeliveryTimestamp(due).build());
        producer.recallMessage("T_delay", recalled.getRecallHandle());
        for (String name : new String[] {"committed", "rolled back", "undecided"}) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("T_transaction", name).build(), transaction);
            if (name.equals("committed")) {
                transaction.commit();
            } else if (name.equals("rolled back")) {
                transaction.rollback();
            }
        }
        tell("sent", "");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        input.readLine();
        for (int number = 0; number < 10; number++) {
            sendSurely(producer, message("T", "later " + number).build());
        }
        tell("sent", "");
        input.readLine();
        System.exit(0);
    }

    private static void push(String by, String... topics) throws ClientException {
        Map<String, FilterExpression> all = new HashMap<>();
        for (String topic : topics) {
            all.put(topic, FilterExpression.SUB_ALL);
        }
        Set<String> seen = ConcurrentHashMap.newKeySet();
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("GID_" + by).setSubscriptionExpressions(all)
            .setMessageListener(message -> {
                String body = got(by, message);
                boolean fails = body.startsWith("fails") && seen.add(body);
                return body.equals("poison") || fails
                    ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
    }

    private static void receive() {
        try {
            SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration).setConsumerGroup("GID_simple")
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Map.of("T", FilterExpression.SUB_ALL)).build();
            while (true) {
                try {
                    for (MessageView message : consumer.receive(32, Duration.ofSeconds(15))) {
                        got("simple", message);
                        consumer.ack(message);
                    }
                } catch (ClientException | StatusRuntimeException error) {
                    failed("receive", error);
                    Thread.sleep(500);
                }
            }
        } catch (ClientException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void sendSurely(Producer producer, Message message) throws Exception {
        long end = System.currentTimeMillis() + 60_000;
        while (true) {
            try {
                producer.send(message);
                return;
            } catch (ClientException | StatusRuntimeException error) {
                failed("send", error);
                if (System.currentTimeMillis() > end) {
                    throw error;
                }
                Thread.sleep(500);
            }
        }
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic)
            .setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String got(String by, MessageView message) {
        String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
        tell("got", String.format(", \"by\": \"%s\", \"body\": \"%s\", \"attempt\": %d, \"ms\": %d",
            by, body, message.getDeliveryAttempt(), System.currentTimeMillis()));
        return body;
    }

    private static void failed(String what, Exception error) {
        String text = String.valueOf(error.getMessage()).replaceAll("[\"\\\\\\s]+", " ");
        tell("failed", String.format(", \"what\": \"%s\", \"error\": \"%s\"", what, text));
    }

    private static synchronized void tell(String event, String fields) {
        System.out.println("{\"event\": \"" + event + "\"" + fields + "}");
    }
}
