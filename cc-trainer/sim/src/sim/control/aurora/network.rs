//! The policy network: 30 inputs, hidden layers of 32 and 16 units with tanh, and one output.

/// Latency gradient, latency ratio and send ratio of ten intervals, the oldest first.
pub type Observation = [f32; 30];

/// A network of Aurora's architecture (section 4.3: two hidden layers of 32 and 16 tanh units).
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// From the observation to the first hidden layer.
    pub first: Layer<30, 32>,
    /// From there to the second hidden layer.
    pub second: Layer<32, 16>,
    /// From there to the output, the action.
    pub last: Layer<16, 1>,
}

/// An affine map of I values to O.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer<const I: usize, const O: usize> {
    /// The weights of each output.
    pub weights: [[f32; I]; O],
    /// What is added to each output.
    pub biases: [f32; O],
}

/// The values of the units.
#[derive(Clone, Copy, Debug)]
pub struct Activations {
    /// Those of the first hidden layer.
    pub first: [f32; 32],
    /// Those of the second hidden layer.
    pub second: [f32; 16],
    /// The output, which is the action.
    pub output: f32,
}

impl Network {
    /// A network whose parameters are all 0.
    pub fn zero() -> Self {
        Self {
            first: Layer::zero(),
            second: Layer::zero(),
            last: Layer::zero(),
        }
    }

    /// Computes the values of all units.
    pub fn activations(&self, observation: &Observation) -> Activations {
        let first = self.first.apply(observation).map(f32::tanh);
        let second = self.second.apply(&first).map(f32::tanh);
        let [output] = self.last.apply(&second);
        Activations {
            first,
            second,
            output,
        }
    }

    /// All parameters: for each layer the weights of each output, then the biases.
    pub fn parameters(&self) -> impl Iterator<Item = &f32> {
        let (first, second, last) = (&self.first, &self.second, &self.last);
        (first.parameters())
            .chain(second.parameters())
            .chain(last.parameters())
    }

    /// All parameters, in the order of [`parameters`](Self::parameters).
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        let (first, second, last) = (&mut self.first, &mut self.second, &mut self.last);
        (first.parameters_mut())
            .chain(second.parameters_mut())
            .chain(last.parameters_mut())
    }

    /// Reads the parameters in their order from numbers separated by white space. Lines that begin
    /// with `#` are comments.
    ///
    /// # Errors
    ///
    /// Says which word is not a finite number, or how many numbers there are instead of 1,537.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut network = Self::zero();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        let wanted = network.parameters().count();
        if words.len() != wanted {
            return Err(format!("{} weights instead of {wanted}", words.len()));
        }
        for (parameter, word) in network.parameters_mut().zip(words) {
            *parameter = (word.parse().ok())
                .filter(|value: &f32| value.is_finite())
                .ok_or_else(|| format!("the weight `{word}` is not a finite number"))?;
        }
        Ok(network)
    }
}

impl<const I: usize, const O: usize> Layer<I, O> {
    fn zero() -> Self {
        Self {
            weights: [[0.0; I]; O],
            biases: [0.0; O],
        }
    }

    fn apply(&self, inputs: &[f32; I]) -> [f32; O] {
        let mut outputs = self.biases;
        for (output, weights) in outputs.iter_mut().zip(&self.weights) {
            let products = weights
                .iter()
                .zip(inputs)
                .map(|(weight, input)| weight * input);
            *output += products.sum::<f32>();
        }
        outputs
    }

    fn parameters(&self) -> impl Iterator<Item = &f32> {
        self.weights.iter().flatten().chain(&self.biases)
    }

    fn parameters_mut(&mut self) -> impl Iterator<Item = &mut f32> {
        self.weights.iter_mut().flatten().chain(&mut self.biases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trained_weights_are_complete() {
        let network = Network::parse(include_str!("weights.txt")).expect("1,537 numbers");
        assert!(network.parameters().any(|&weight| weight != 0.0));
    }

    #[test]
    fn bad_weights_are_refused() {
        assert_eq!(
            Network::parse("# none\n1 2").expect_err("too few"),
            "2 weights instead of 1537"
        );
        let text = format!("NaN {}", "0 ".repeat(1536));
        let error = Network::parse(&text).expect_err("not a number");
        assert!(error.contains("`NaN`"), "{error}");
    }

    #[test]
    fn the_output_is_that_of_two_layers_of_tanh() {
        let mut network = Network::zero();
        network.first.weights[3][29] = 2.0;
        network.first.biases[3] = 0.5;
        network.second.weights[1][3] = -1.0;
        network.last.weights[0][1] = 3.0;
        network.last.biases[0] = 0.25;
        let mut observation = [0.0; 30];
        observation[29] = 0.1;
        let expected = 3.0 * (-(0.7_f32.tanh())).tanh() + 0.25;
        let found = network.activations(&observation).output;
        assert!((found - expected).abs() < 1e-6, "{found}");
        // The parameters are listed by layer, weights first.
        assert_eq!(
            network.parameters().position(|&p| p == 2.0),
            Some(3 * 30 + 29)
        );
        assert_eq!(network.parameters().last(), Some(&0.25));
    }
}
