import io.envoyproxy.envoy.service.ratelimit.v3.*;
import io.grpc.*;
import java.util.concurrent.TimeUnit;

public class Ask {
    public static void main(String[] args) {
        ManagedChannel channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build(); // one for the program
        var limiter = RateLimitServiceGrpc.newBlockingStub(channel).withWaitForReady();
        var entry = RateLimitDescriptor.Entry.newBuilder().setKey("user").setValue("alex");
        var descriptor = RateLimitDescriptor.newBuilder().addEntries(entry);
        var request = RateLimitRequest.newBuilder().setDomain("shop").addDescriptors(descriptor).build();
        var answer = limiter.withDeadlineAfter(5, TimeUnit.SECONDS).shouldRateLimit(request);
        System.out.println(answer.getOverallCode() + " " + answer.getStatuses(0).getLimitRemaining());
        channel.shutdown();
    }
}
