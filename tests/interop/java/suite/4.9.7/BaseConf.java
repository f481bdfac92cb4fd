package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.test.util.MQRandomUtils;

/** What the tests of 4.9.7 stand on: a cluster that runs elsewhere. Theirs starts one in its JVM. */
public class BaseConf {
    public static final String nsAddr = System.getProperty("suite.nameServer");
    protected static final String clusterName = "DefaultCluster";
    protected static final String broker1Name;
    protected static final String broker2Name;
    protected static final int brokerNum;
    protected static final int waitTime = 5;
    protected static final int consumeTime = 2 * 60 * 1_000;
    protected static final List<Object> mqClients = new ArrayList<>();

    static {
        String[] brokers = System.getProperty("suite.brokers").split(",");
        brokerNum = brokers.length;
        broker1Name = brokers[0].split("=")[0];
        broker2Name = brokers[1].split("=")[0];
        System.setProperty(
            RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopicWithName(String topic) {
        if (!MQAdmin.createTopic(nsAddr, clusterName, topic, 8)) {
            throw new AssertionError("topic " + topic + " was not made");
        }
        return topic;
    }

    public static String initConsumerGroup() {
        String group = MQRandomUtils.getRandomConsumerGroup();
        MQAdmin.createSub(nsAddr, clusterName, group);
        return group;
    }

    private static <T> T keep(T client) {
        mqClients.add(client);
        return client;
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic) {
        return getProducer(nameServer, topic, false);
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, boolean tls) {
        return keep(new RMQNormalProducer(nameServer, topic, tls));
    }

    public static RMQNormalProducer getProducer(
            String nameServer, String topic, String group, String instance) {
        return keep(new RMQNormalProducer(nameServer, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
            String nameServer, String topic, TransactionListener listener) {
        return keep(new RMQTransactionalProducer(nameServer, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nameServer, String topic) {
        return keep(new RMQAsyncSendProducer(nameServer, topic));
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String expression, AbstractListener listener) {
        return getConsumer(nameServer, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String expression, AbstractListener listener,
            boolean tls) {
        return keep(ConsumerFactory.getRMQNormalConsumer(
            nameServer, initConsumerGroup(), topic, expression, listener, tls));
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String group, String topic, String expression,
            AbstractListener listener) {
        return keep(ConsumerFactory.getRMQNormalConsumer(
            nameServer, group, topic, expression, listener, false));
    }

    public static void shutdown() {
        for (Object client : mqClients) {
            if (client instanceof AbstractMQProducer) {
                ((AbstractMQProducer) client).shutdown();
            } else {
                ((AbstractMQConsumer) client).shutdown();
            }
        }
        mqClients.clear();
    }
}
