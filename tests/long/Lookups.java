import java.util.HashMap;
import java.util.Random;

/** Looks up random values of a map at a fixed rate, and allocates short-lived objects meanwhile. */
public class Lookups {
    static final int VALUE_BYTES = 2048, GARBAGE_BYTES = 1024;
    static byte[] kept;

    public static void main(String[] arguments) throws Exception {
        int keys = Integer.parseInt(arguments[0]);
        double rate = Double.parseDouble(arguments[1]);
        Random random = new Random(1);
        HashMap<Integer, byte[]> values = new HashMap<>();
        for (int key = 0; key < keys; key++) {
            byte[] value = new byte[VALUE_BYTES];
            // Half of each value is random, so that it does not compress to nothing.
            byte[] half = new byte[VALUE_BYTES / 2];
            random.nextBytes(half);
            System.arraycopy(half, 0, value, 0, half.length);
            values.put(key, value);
        }
        System.out.println("ready");
        double start = seconds(), last = start;
        long sum = 0;
        for (long done = 0;; done++) {
            byte[] value = values.get(random.nextInt(keys));
            for (int at = 0; at < value.length; at += 64) sum += value[at];
            kept = new byte[GARBAGE_BYTES + (int) (sum & 1)];
            double now = seconds(), ahead = start + done / rate - now;
            if (ahead > 0.001) Thread.sleep((long) (ahead * 1000));
            else if (ahead < -0.1) start -= ahead;
            if (now - last >= 0.25) {
                System.out.printf("%.3f %d%n", now, done);
                last = now;
            }
        }
    }

    static double seconds() {
        return System.nanoTime() * 1e-9;
    }
}
